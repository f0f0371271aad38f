"""
The child process that tries a library on one GPU; see :mod:`propolis_rocm_blas.probe`.

It ends with 0 where products are right, with 1 and a reason where one is not; where rocBLAS has no
machine code, rocBLAS ends it.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from propolis import Config
from propolis import Tensor
from propolis import dtypes
from propolis.errors import PropolisError
from propolis_rocm_blas.libraries import ALL
from propolis_rocm_blas.ops_matmul import matmul_by
from propolis_rocm_hip.device import RocmProvider


def main() -> None:
    """Compute on the GPU whose number is the first argument, by the library that is the second."""
    reason = ""
    try:
        device = RocmProvider(Config.load()).open(int(sys.argv[1]))
        by = device.keep(ALL[sys.argv[2]].make)
        for dtype in (dtypes.f32, dtypes.f16):
            numbers = np.arange(16, dtype=np.float32).reshape(4, 4)
            a = Tensor.from_numpy(numbers.astype(dtype.numpy), device)
            out = device.empty((4, 4), dtype)
            matmul_by(by, out, a, a)
            found = out.numpy().astype(np.float32)
            if not np.array_equal(found, numbers @ numbers):
                reason = f"a product in {dtype} is wrong: {found.tolist()}"
                break
    except PropolisError as exc:
        reason = str(exc)
    print(reason, flush=True)
    # No interpreter shutdown: a library's exit handlers may crash, and the answer is given.
    os._exit(1 if reason else 0)


if __name__ == "__main__":
    main()
