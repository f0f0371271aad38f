"""
Compiles Composable Kernel's kernels: ``python -m propolis_flash_attn_ck.builder``, `make ck`.

Needs what rocm_kernels' builder needs, and the headers of Composable Kernel, which it fetches once.
"""
