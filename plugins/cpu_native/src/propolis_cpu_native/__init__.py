"""CPU kernels for Propolis, in C++."""
