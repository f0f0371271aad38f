"""
Compiles the kernels ahead of time: ``python -m propolis_rocm_kernels.builder``, `make kernels`.

Needs hipcc of ROCm 6.3 or newer, or clang 19 or newer with AMD's device libraries.
"""
