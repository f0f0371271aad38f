"""HIP kernels for AMD GPUs: every op that needs no vendor library."""
