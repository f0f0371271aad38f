"""Does the installed ROCm have the functions that our plugins call?  No GPU is needed."""

from __future__ import annotations

import sys

from propolis_rocm_blas import _ffi as blas
from propolis_rocm_miopen import _ffi as miopen


def main() -> None:
    """Print a line for each library; end with 1 where one lacks a function."""
    complete = True
    for name, library in (("rocBLAS", blas), ("MIOpen", miopen)):
        loaded = library.library()
        missing = [function for function in library.SIGNATURES if not loaded.has(function)]
        complete = complete and not missing
        lacking = f"lacks {', '.join(missing)}" if missing else "has every function that we call"
        print(f"{name} {library.version()} ({library.path()}) {lacking}")
    sys.exit(not complete)


if __name__ == "__main__":
    main()
