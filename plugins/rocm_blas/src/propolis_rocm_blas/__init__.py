"""Matrix products on AMD GPUs by rocBLAS or hipBLASLt.  Importing this loads no ROCm library."""

from __future__ import annotations


__all__: list[str] = []
