"""
The simulated MIOpen for the scripts that the tests run in processes of their own.

Not a test and not imported by pytest; beside ``gpu``, which it builds on.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from ctypes import byref as ref
from ctypes import c_void_p as P  # noqa: N812 - as the other scripts call it
from pathlib import Path

import ml_dtypes
import numpy as np
from gpu import download
from gpu import upload


SIGNATURES = json.loads(
    (Path(__file__).parents[1] / "rocm_miopen" / "miopen_signatures.json").read_text()
)
LETTERS = {"i": ctypes.c_int, "Q": ctypes.c_uint64, "?": ctypes.c_bool, "P": P}
LIBRARY = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"]) / "lib" / "libMIOpen.so.1"))
for _name, _letters in SIGNATURES.items():
    getattr(LIBRARY, _name).argtypes = [LETTERS[letter] for letter in _letters[1:]]
LIBRARY.miopenGetErrorString.restype = ctypes.c_char_p
LIBRARY.hipsim_miopen_count.restype = ctypes.c_longlong

KINDS = {"f16": 0, "f32": 1, "bf16": 5, "f64": 6, "i8": 3}
TYPES = {"f16": np.float16, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
GEMM, DIRECT, WINOGRAD, IMPLICIT_GEMM = 0, 1, 3, 5
ONE, ZERO = (ref(ctypes.c_float(value)) for value in (1, 0))


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
    place = P()
    good(function, ref(place), *arguments)
    return place


def create(stream=0):
    """A handle whose work is queued on that stream."""
    return made("CreateWithStream", P(int(stream)))


def done(what):
    """How often the library did something."""
    return LIBRARY.hipsim_miopen_count(what.encode())


def ints(values):
    """An array of C's int."""
    values = list(values)
    return (ctypes.c_int * len(values))(*values)


def zeros(size):
    """The address of so many zeros in device memory."""
    return upload(np.zeros(size, np.uint8))


def tensor(kind, sizes, *, last=False, strides=None):
    """A descriptor of a tensor, packed with its channels first or last unless it has strides."""
    if last and strides is None:
        channels = [sizes[0], *sizes[2:], sizes[1]]
        steps = np.cumprod([1, *channels[:0:-1]])[::-1].tolist()
        strides = [steps[0], steps[-1], *steps[1:-1]]
    descriptor = made("CreateTensorDescriptor")
    strides = ints(strides) if strides else None
    good("SetTensorDescriptor", descriptor, KINDS[kind], len(sizes), ints(sizes), strides)
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


class Op:
    """What a convolution and a pooling share: ``truth``, and a result to compare with it."""

    def result(self):
        """What lies where the result belongs, as float64."""
        return taken(self.y, self.truth.shape, self.kind, last=self.last)

    def right(self):
        """Whether it is numpy's, rounded once."""
        rounded = self.truth.astype(TYPES[self.kind]).astype(np.float64)
        return np.array_equal(self.result(), rounded)


class Convolution(Op):
    """A convolution of random small integers, its descriptors and what numpy makes of it."""

    def __init__(
        self, kind, x, w, *, pad=0, stride=1, dilation=1, groups=1, extra=None, last=False
    ):
        axes = len(x) - 2
        each = [v if isinstance(v, tuple) else (v,) * axes for v in (pad, stride, dilation)]
        extra = (extra,) * axes if isinstance(extra, int) else extra
        random = np.random.default_rng(1)
        self.kind, self.last = kind, last
        images, weights = (random.integers(-3, 4, size).astype(np.float64) for size in (x, w))
        self.truth = reference(images, weights, *each, groups, extra)
        by = self.descriptor = made("CreateConvolutionDescriptor")
        good("InitConvolutionNdDescriptor", by, axes, *map(ints, each), int(extra is not None))
        good("SetConvolutionGroupCount", by, groups)
        if extra is not None:
            good("SetTransposeConvNdOutputPadding", by, axes, ints(extra))
        self.tensors = [tensor(kind, size, last=last) for size in (x, w, self.truth.shape)]
        self.x, self.w = (lay(array, kind, last=last) for array in (images, weights))
        self.clear()

    def clear(self):
        """Forget the result."""
        self.y = lay(np.full(self.truth.shape, np.nan), self.kind)

    @property
    def problem(self):
        """The descriptors as the immediate mode takes them."""
        x, w, y = self.tensors
        return w, x, self.descriptor, y

    def solutions(self, handle):
        """What is offered, the best first."""
        found, given = (Solution * 8)(), ctypes.c_size_t()
        good("ConvolutionForwardGetSolution", handle, *self.problem, 8, ref(given), found)
        return found[: given.value]

    def solution(self, handle, algorithm):
        """The one of an algorithm."""
        return next(s for s in self.solutions(handle) if s.algorithm == algorithm)

    def compile(self, handle, solution):
        """The status of its compilation."""
        name = "ConvolutionForwardCompileSolution"
        return call(name, handle, *self.problem, getattr(solution, "id", solution))

    def run(self, handle, solution, workspace=None, size=None):
        """The status of a run in the immediate mode."""
        x, w, y = self.tensors
        if workspace is None and solution.workspace:
            workspace = zeros(solution.workspace)
        size = solution.workspace if size is None else size
        operands = (w, self.w, x, self.x, self.descriptor, y, self.y, workspace, size)
        return call("ConvolutionForwardImmediate", handle, *operands, solution.id)

    def find(self, handle, workspace, size):
        """What the find mode gives: algorithms and what workspaces they want."""
        x, w, y = self.tensors
        operands = (x, self.x, w, self.w, self.descriptor, y, self.y)
        given, found = ctypes.c_int(), (Perf * 4)()
        name = "FindConvolutionForwardAlgorithm"
        good(name, handle, *operands, 4, ref(given), found, workspace, size, False)
        return {each.algorithm: each.memory for each in found[: given.value]}

    def forward(self, handle, algorithm, workspace, size, alpha=ONE):
        """The status of a run in the find mode."""
        x, w, y = self.tensors
        operands = (alpha, x, self.x, w, self.w, self.descriptor, algorithm, ZERO, y, self.y)
        return call("ConvolutionForward", handle, *operands, workspace, size)


class Pooling(Op):
    """A pooling, its descriptors and what numpy makes of it."""

    def __init__(self, kind, mode, x, window, stride, pad, *, last=False):
        axes, self.kind, self.last = len(window), kind, last
        out = [
            (n + 2 * p - w) // s + 1
            for n, w, s, p in zip(x.shape[2:], window, stride, pad, strict=True)
        ]
        self.truth = np.zeros((*x.shape[:2], *out))
        for spot in np.ndindex(*out):
            starts = [i * s - p for i, s, p in zip(spot, stride, pad, strict=True)]
            here = [slice(max(0, i), i + w) for i, w in zip(starts, window, strict=True)]
            seen = x[(..., *here)].reshape(*x.shape[:2], -1)
            count = np.prod(window) if mode == 2 else seen.shape[-1]
            sums = seen.sum(-1, dtype=np.float32) / np.float32(count)
            self.truth[(..., *spot)] = seen.max(-1) if mode == 0 else sums
        self.descriptor = made("CreatePoolingDescriptor")
        sizes = map(ints, (window, pad, stride))
        good("SetNdPoolingDescriptor", self.descriptor, mode, axes, *sizes)
        self.tensors = [tensor(kind, v.shape, last=last) for v in (x, self.truth)]
        self.x, self.y = (lay(v, kind, last=last) for v in (x, self.truth * 0))

    def run(self, handle, *, backward=False):
        """The status of a run."""
        x, y = self.tensors
        operands = (self.descriptor, ONE, x, self.x, ZERO, y, self.y, backward, None, 0)
        return call("PoolingForward", handle, *operands)


def reference(x, w, pad, stride, dilation, groups, extra=None):
    """A convolution in float64, transposed where there is output padding."""
    if extra is not None:
        return _transposed(x, w, pad, stride, dilation, groups, extra)
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pad)))
    per, inputs = w.shape[0] // groups, w.shape[1]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for tap, here in _taps(w, dilation, stride, out):
        for g in range(groups):
            rows = slice(g * per, (g + 1) * per)
            seen = x[(slice(None), slice(g * inputs, (g + 1) * inputs), *here)]
            y[:, rows] += np.einsum("nc...,kc->nk...", seen, w[(rows, slice(None), *tap)])
    return y


def _transposed(x, w, pad, stride, dilation, groups, extra):
    inputs, per = w.shape[0] // groups, w.shape[1]
    sizes = zip(x.shape[2:], w.shape[2:], stride, dilation, extra, strict=True)
    out = [(n - 1) * s + d * (k - 1) + 1 + e for n, k, s, d, e in sizes]
    y = np.zeros((x.shape[0], per * groups, *out))
    for tap, here in _taps(w, dilation, stride, x.shape[2:]):
        for g in range(groups):
            rows = slice(g * inputs, (g + 1) * inputs)
            to = y[(slice(None), slice(g * per, (g + 1) * per), *here)]
            to += np.einsum("nc...,ck->nk...", x[:, rows], w[(rows, slice(None), *tap)])
    inside = (slice(p, n - p) for p, n in zip(pad, out, strict=True))
    return y[(slice(None), slice(None), *inside)]


def _taps(w, dilation, stride, count):
    """Each tap, and the positions that it pairs with ``count`` others, a stride apart."""
    for tap in itertools.product(*map(range, w.shape[2:])):
        spots = zip(tap, dilation, stride, count, strict=True)
        yield tap, tuple(slice(t * d, t * d + s * n, s) for t, d, s, n in spots)
