"""
The simulated MIOpen for the scripts that the tests run in processes of their own.

Not a test and not imported by pytest; beside ``gpu``, which it builds on.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
from gpu import download
from gpu import upload


SIGNATURES = json.loads(
    (Path(__file__).parents[1] / "rocm_miopen" / "miopen_signatures.json").read_text()
)
LETTERS = {
    "i": ctypes.c_int,
    "Q": ctypes.c_uint64,
    "?": ctypes.c_bool,
    "P": ctypes.c_void_p,
}
LIBRARY = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"]) / "lib" / "libMIOpen.so.1"))
for _name, _letters in SIGNATURES.items():
    getattr(LIBRARY, _name).argtypes = [LETTERS[letter] for letter in _letters[1:]]
LIBRARY.miopenGetErrorString.restype = ctypes.c_char_p
LIBRARY.hipsim_miopen_count.restype = ctypes.c_longlong

KINDS = {"f16": 0, "f32": 1, "bf16": 5, "f64": 6, "i8": 3}
TYPES = {"f16": np.float16, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
GEMM, DIRECT, WINOGRAD, IMPLICIT_GEMM = 0, 1, 3, 5


class Solution(ctypes.Structure):
    """``miopenConvSolution_t``."""

    _fields_ = (
        ("time", ctypes.c_float),
        ("workspace", ctypes.c_size_t),
        ("id", ctypes.c_uint64),
        ("algorithm", ctypes.c_int),
    )


class Perf(ctypes.Structure):
    """``miopenConvAlgoPerf_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
    )


def call(function, *arguments):
    """The status of a call, without its prefix."""
    status = getattr(LIBRARY, "miopen" + function)(*arguments)
    return LIBRARY.miopenGetErrorString(status).decode().removeprefix("miopenStatus")


def good(function, *arguments):
    """A call that must succeed."""
    status = call(function, *arguments)
    assert status == "Success", (function, status)


def made(function, *arguments):
    """What a function that creates something has put into its first parameter."""
    place = ctypes.c_void_p()
    good(function, ctypes.byref(place), *arguments)
    return place


def create(stream=0):
    """A handle whose work is queued on that stream."""
    return made("CreateWithStream", ctypes.c_void_p(int(stream)))


def count(what):
    """How often the library did something."""
    return LIBRARY.hipsim_miopen_count(what.encode())


def ints(values):
    """An array of C's int."""
    values = list(values)
    return (ctypes.c_int * len(values))(*values)


def tensor(kind, sizes, *, last=False, strides=None):
    """A descriptor of a packed tensor, with its channels first or last."""
    descriptor = made("CreateTensorDescriptor")
    if strides is None and last:
        order = (0, *range(2, len(sizes)), 1)
        strides = [0] * len(sizes)
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= sizes[axis]
    good("SetTensorDescriptor", descriptor, KINDS[kind], len(sizes), ints(sizes), ints(strides) if strides else None)
    return descriptor


def lay(array, kind, *, last=False):
    """The array's elements in device memory, with its channels first or last."""
    return upload((np.moveaxis(array, 1, -1) if last else array).astype(TYPES[kind]))


def taken(address, shape, kind, *, last=False):
    """What lies there, as float64."""
    if not last:
        return download(address, shape, TYPES[kind]).astype(np.float64)
    shape = (shape[0], *shape[2:], shape[1])
    return np.moveaxis(download(address, shape, TYPES[kind]), -1, 1).astype(np.float64)


class Convolution:
    """A convolution of random small integers, its descriptors and what numpy makes of it."""

    def __init__(
        self, kind, x, w, *, pad=0, stride=1, dilation=1, groups=1, extra=None, last=False
    ):
        axes = len(x) - 2
        each = [v if isinstance(v, tuple) else (v,) * axes for v in (pad, stride, dilation)]
        extra = (extra,) * axes if isinstance(extra, int) else extra
        random = np.random.default_rng(1)
        self.kind, self.last = kind, last
        self.x, self.w = (random.integers(-3, 4, size).astype(np.float64) for size in (x, w))
        self.truth = reference(self.x, self.w, *each, groups, extra)
        self.descriptor = made("CreateConvolutionDescriptor")
        good("InitConvolutionNdDescriptor", self.descriptor, axes, *map(ints, each), int(extra is not None))
        good("SetConvolutionGroupCount", self.descriptor, groups)
        if extra is not None:
            good("SetTransposeConvNdOutputPadding", self.descriptor, axes, ints(extra))
        self.shape = self.truth.shape
        self.tensors = [tensor(kind, size, last=last) for size in (x, w, self.shape)]
        self.at = [lay(self.x, kind, last=last), lay(self.w, kind, last=last), lay(np.zeros(self.shape), kind, last=last)]

    @property
    def problem(self):
        """The descriptors as the immediate mode takes them."""
        x, w, y = self.tensors
        return w, x, self.descriptor, y

    def solutions(self, handle, most=8):
        """What is offered, the best first."""
        found, given = (Solution * most)(), ctypes.c_size_t()
        good("ConvolutionForwardGetSolution", handle, *self.problem, most, ctypes.byref(given), found)
        return found[: given.value]

    def solution(self, handle, algorithm):
        """The one of an algorithm."""
        return next(s for s in self.solutions(handle) if s.algorithm == algorithm)

    def run(self, handle, solution, workspace=None, size=None):
        """The status of a run in the immediate mode."""
        x, w, y = self.tensors
        if workspace is None and solution.workspace:
            workspace = upload(np.zeros(solution.workspace, np.uint8))
        at = self.at
        return call("ConvolutionForwardImmediate", handle, w, at[1], x, at[0], self.descriptor, y, at[2], workspace,
                    solution.workspace if size is None else size, solution.id)  # fmt: skip

    def result(self):
        """What lies where the result belongs, as float64."""
        return taken(self.at[2], self.shape, self.kind, last=self.last)

    def right(self):
        """Whether it is numpy's, rounded once."""
        rounded = self.truth.astype(TYPES[self.kind]).astype(np.float64)
        return np.array_equal(self.result(), rounded)


def reference(x, w, pad, stride, dilation, groups, extra=None):
    """A convolution in float64, transposed where there is output padding."""
    if extra is not None:
        return _transposed(x, w, pad, stride, dilation, groups, extra)
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pad)))
    per, inputs = w.shape[0] // groups, w.shape[1]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)]  # fmt: skip
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for tap in itertools.product(*map(range, w.shape[2:])):
        here = tuple(slice(t * d, t * d + s * o, s) for t, d, s, o in zip(tap, dilation, stride, out, strict=True))  # fmt: skip
        seen = x[(slice(None), slice(None), *here)]
        for g in range(groups):
            rows = slice(g * per, (g + 1) * per)
            part = seen[:, g * inputs : (g + 1) * inputs]
            y[:, rows] += np.einsum("nc...,kc->nk...", part, w[(rows, slice(None), *tap)])
    return y


def _transposed(x, w, pad, stride, dilation, groups, extra):
    inputs, per = w.shape[0] // groups, w.shape[1]
    out = [(n - 1) * s + d * (k - 1) + 1 + e for n, k, s, d, e in zip(x.shape[2:], w.shape[2:], stride, dilation, extra, strict=True)]  # fmt: skip
    y = np.zeros((x.shape[0], per * groups, *out))
    for tap in itertools.product(*map(range, w.shape[2:])):
        here = tuple(slice(t * d, t * d + s * n, s) for t, d, s, n in zip(tap, dilation, stride, x.shape[2:], strict=True))  # fmt: skip
        for g in range(groups):
            rows = slice(g * inputs, (g + 1) * inputs)
            to = y[(slice(None), slice(g * per, (g + 1) * per), *here)]
            to += np.einsum("nc...,ck->nk...", x[:, rows], w[(rows, slice(None), *tap)])
    return y[(slice(None), slice(None), *(slice(p, n - p) for p, n in zip(pad, out, strict=True)))]
