"""
The simulated hipBLASLt for the scripts that the tests run in processes of their own.

Not a test and not imported by pytest; beside ``gpu``, which it builds on.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np


LIBRARY = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"]) / "lib" / "libhipblaslt.so.1"))
P, I, Q, S = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int64
KINDS = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
NONE, TRANSPOSE = 111, 112


def made(name, *arguments):
    """What a function makes."""
    at = P()
    status = getattr(LIBRARY, name)(ctypes.byref(at), *arguments)
    assert status == 0, (name, status)
    return at


def set_(name, descriptor, attribute, value):
    """The status of setting an attribute."""
    function = getattr(LIBRARY, f"hipblasLt{name}SetAttribute")
    return function(descriptor, I(attribute), ctypes.byref(value), Q(ctypes.sizeof(value)))


class Matmul:
    """A product's descriptors, and the algorithm that was found: ``heuristic``, its status."""

    def __init__(self, handle, sizes, kind="f32", *, out=None, trans=(NONE, NONE), batches=1,
                 steps=(0, 0, 0), workspace=1 << 20, compute=None):  # fmt: skip
        m, n, k = sizes
        wide = kind == "f64"
        self.handle = handle
        self.with_ = made(
            "hipblasLtMatmulDescCreate", I(compute or (7 if wide else 2)), I(1 if wide else 0)
        )
        for attribute, operation in enumerate(trans):
            assert set_("MatmulDesc", self.with_, attribute, I(operation)) == 0
        shapes = (
            (m, k) if trans[0] == NONE else (k, m),
            (k, n) if trans[1] == NONE else (n, k),
            (m, n),
        )
        kinds = (kind, kind, out or kind)
        self.layouts = [
            made("hipblasLtMatrixLayoutCreate", I(KINDS[t]), Q(rows), Q(columns), S(rows))
            for t, (rows, columns) in zip(kinds, shapes, strict=True)
        ]
        for layout, step in zip(self.layouts, steps, strict=True):
            assert set_("MatrixLayout", layout, 0, I(batches)) == 0
            assert set_("MatrixLayout", layout, 1, S(step)) == 0
        self.preference = made("hipblasLtMatmulPreferenceCreate")
        assert set_("MatmulPreference", self.preference, 1, Q(workspace)) == 0
        self.found, count = ctypes.create_string_buffer(56), I(-1)
        a, b, d = self.layouts
        self.heuristic = LIBRARY.hipblasLtMatmulAlgoGetHeuristic(
            *(handle, self.with_, a, b, d, d, self.preference, I(1), self.found),
            ctypes.byref(count),
        )
        self.count = count.value
        self.wants = int(np.frombuffer(self.found.raw, np.uint64)[3])

    def run(self, a, b, d, *, alpha=1.0, beta=0.0, algo=None, workspace=(0, 0), stream=0):
        """The status of the product of what lies at these addresses."""
        one, other = ctypes.c_float(alpha), ctypes.c_float(beta)
        x, y, z = self.layouts
        return LIBRARY.hipblasLtMatmul(
            *(self.handle, self.with_, ctypes.byref(one), P(a), x, P(b), y, ctypes.byref(other)),
            *(P(d), z, P(d), z, self.found if algo is None else algo),
            *(P(workspace[0]), Q(workspace[1]), P(stream)),
        )


def create():
    """A handle."""
    return made("hipblasLtCreate")
