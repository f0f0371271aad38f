"""
The child process that tries MIOpen on one GPU; see :mod:`propolis_rocm_miopen.probe`.

It ends with 0 where convolutions are right, with 1 and a reason where one is not; where rocBLAS has
no machine code, the GEMM solution ends it.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from propolis import Config
from propolis import Tensor
from propolis import dtypes
from propolis.errors import PropolisError
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen._problem import problem
from propolis_rocm_miopen.handle import Handle
from propolis_rocm_miopen.probe import WITHOUT_GEMM


def main() -> None:
    """Compute on the GPU whose number is the argument."""
    gemm = WITHOUT_GEMM not in sys.argv
    try:
        reason = _tried(int(sys.argv[1]), gemm=gemm)
    except PropolisError as exc:
        reason = str(exc)
    print(reason, flush=True)
    # No interpreter shutdown: a library's exit handlers may crash, and the answer is given.
    os._exit(1 if reason else 0)


def _tried(index: int, *, gemm: bool) -> str:
    """What went wrong; empty where nothing did."""
    device = RocmProvider(Config.load()).open(index)
    handle = Handle(device, gemm=gemm)
    numbers = np.arange(256, dtype=np.float32).reshape(1, 4, 8, 8) % 7
    x = Tensor.from_numpy(numbers, device)
    w = Tensor.from_numpy(np.ones((2, 4, 1, 1), np.float32), device)
    shapes = x.shape, w.shape, (1, 2, 8, 8)
    given = problem(dtypes.f32, *shapes, 1, 0, 1, 1)
    right = np.repeat(numbers.sum(1, keepdims=True), 2, axis=1)
    offers = list(handle.offers(given))
    # All that multiply by rocBLAS, and the one that would be taken.
    chosen = [o for o in offers if o.algorithm == _ffi.GEMM] if gemm else []
    chosen += [o for o in offers if o.algorithm != _ffi.GEMM][:1]
    for offer in chosen:
        out = device.empty((1, 2, 8, 8), dtypes.f32)
        tried = handle.prepared(given, offer)
        if isinstance(tried, str):
            return tried
        handle.convolve(tried, x.storage.ptr, w.storage.ptr, 0, out.storage.ptr)
        if not np.array_equal(out.numpy(), right):
            return f"{given} is wrong by solution {offer.solution_id}: {out.numpy().tolist()}"
    return "" if chosen else f"MIOpen offers nothing for {given}"


if __name__ == "__main__":
    main()
