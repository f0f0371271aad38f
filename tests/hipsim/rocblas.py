"""
The simulated rocBLAS for the scripts that the tests run in processes of their own.

Not a test and not imported by pytest; beside ``gpu``, which it builds on.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np


LIBRARY = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"]) / "lib" / "librocblas.so.4"))
LIBRARY.rocblas_status_to_string.restype = ctypes.c_char_p
LIBRARY.hipsim_rocblas_count.restype = ctypes.c_longlong
KINDS = {"f16": 150, "f32": 151, "f64": 152, "bf16": 168}
NONE, TRANSPOSE = 111, 112
SCALARS = {151: np.float32, 152: np.float64}


def name(status):
    """A status without its prefix."""
    return LIBRARY.rocblas_status_to_string(status).decode().removeprefix("rocblas_status_")


def create(stream=0):
    """A handle whose products are queued on that stream."""
    handle = ctypes.c_void_p()
    assert name(LIBRARY.rocblas_create_handle(ctypes.byref(handle))) == "success"
    assert name(LIBRARY.rocblas_set_stream(handle, ctypes.c_void_p(stream))) == "success"
    return handle


def gemm(
    handle, sizes, a, b, d, kind="f32", *, trans=(NONE, NONE), leading=None, out=None, compute=None,
    alpha=1.0, beta=0.0, strides=None, batches=None, c=None, ldc=None,
):  # fmt: skip
    """The status of a product at addresses: batched where it has strides."""
    m, n, k = sizes
    lda, ldb, ldd = leading or (m if trans[0] == NONE else k, k if trans[1] == NONE else n, m)
    number = KINDS[kind]
    result = KINDS[out or kind]
    compute = compute or (152 if kind == "f64" else 151)
    one, other = (np.array([x], SCALARS.get(compute, np.float32)) for x in (alpha, beta))
    P, I, S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    step = [(S(s),) for s in strides] if strides else [(), (), ()]
    head = (handle, I(trans[0]), I(trans[1]), I(m), I(n), I(k))
    matrices = (
        P(one.ctypes.data),
        P(a),
        I(number),
        I(lda),
        *step[0],
        P(b),
        I(number),
        I(ldb),
        *step[1],
    )
    results = (P(other.ctypes.data), P(d if c is None else c), I(result), I(ldc or ldd), *step[2])
    results += (P(d), I(result), I(ldd), *step[2])
    tail = (I(compute), I(0), I(0), ctypes.c_uint(0))
    if strides:
        function = LIBRARY.rocblas_gemm_strided_batched_ex
        return name(function(*head, *matrices, *results, I(batches), *tail))
    return name(LIBRARY.rocblas_gemm_ex(*head, *matrices, *results, *tail))
