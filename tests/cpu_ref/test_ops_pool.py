"""Pooling against loops over its definition."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
WINDOWS = [
    {"kernel": 2},
    {"kernel": (3, 2)},
    {"kernel": 3, "stride": 1, "padding": 1},
    {"kernel": (2, 4), "stride": (1, 3), "padding": (0, 2)},
    {"kernel": (4, 1), "stride": 2, "padding": (2, 0)},
]


WINDOWS3 = [
    {"kernel": 2},
    {"kernel": (1, 3, 2), "stride": (1, 2, 1), "padding": (0, 1, 1)},
    {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True},
]
CEIL = [
    {"kernel": 2},
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": (3, 2), "stride": (4, 3), "padding": (1, 0)},
    {"kernel": 2, "stride": 1},
    {"kernel": (3, 1), "stride": (4, 5)},
]


def each(sizes, rank):
    """One number for all dimensions, or one for each."""
    return (sizes,) * rank if isinstance(sizes, int) else sizes


def begins(n, k, s, p, d, ceil_mode):
    """Where windows along a dimension begin, and one more where elements are left for it."""
    found = [start for start in range(-p, n + p, s) if start + d * (k - 1) < n + p]
    left = found[-1] + d * (k - 1) < n + p - 1
    return [*found, found[-1] + s] if ceil_mode and left and found[-1] + s < n else found


def seen(x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    """
    For each place of the result the elements of its window, by where they lie.

    Those in the image, and how many there are with the padding.
    """
    rank, sizes = x.ndim - 2, x.shape[2:]
    given = kernel, kernel if stride is None else stride, padding, dilation
    taps, _, pads, spread = geometry = [each(n, rank) for n in given]
    starts = [begins(*g, ceil_mode) for g in zip(sizes, *geometry, strict=True)]
    found = {}
    for index in np.ndindex(*map(len, starts)):
        corner = [s[i] for s, i in zip(starts, index, strict=True)]
        places = [
            tuple(c + t * d for c, t, d in zip(corner, tap, spread, strict=True))
            for tap in np.ndindex(*taps)
        ]
        inside = [p for p in places if all(0 <= i < n for i, n in zip(p, sizes, strict=True))]
        padded = [
            p for p in places if all(i < n + e for i, n, e in zip(p, sizes, pads, strict=True))
        ]
        found[index] = [x[(..., *p)] for p in inside], len(padded)
    return (*x.shape[:2], *map(len, starts)), found


def means(x, counted, **window):
    """Of each window, with the padding or without."""
    shape, found = seen(x.astype(np.float64), **window)
    truth = np.zeros(shape)
    for index, (elements, padded) in found.items():
        truth[(..., *index)] = sum(elements) / (padded if counted else len(elements))
    return truth


def largest(x, **window):
    """Of each window."""
    shape, found = seen(x.astype(np.float64), **window)
    truth = np.zeros(shape)
    for index, (elements, _) in found.items():
        truth[(..., *index)] = np.max(elements, axis=0)
    return truth


@every_float
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("counted", [True, False])
def test_avg_pool2d(run, draw, close, dtype, window, counted):
    """The mean of each window, with padding counted as zeros or not at all."""
    x = draw((2, 3, 7, 8), dtype, 1)
    actual = run(ops.avg_pool2d, Tensor.from_numpy(x), **window, count_padding=counted)
    close(ops.avg_pool2d, means(x, counted, **window), actual)


@pytest.mark.parametrize("window", CEIL, ids=str)
def test_ceil_mode(run, draw, close, same, window):
    """A last window takes what is left of the image; what lies beyond the padding never counts."""
    x = draw((1, 2, 7, 8), dtypes.f32, 1)
    window = {**window, "ceil_mode": True}
    for counted in (True, False):
        actual = run(ops.avg_pool2d, Tensor.from_numpy(x), **window, count_padding=counted)
        close(ops.avg_pool2d, means(x, counted, **window), actual)
    same(largest(x, **window), run(ops.max_pool2d, Tensor.from_numpy(x), **window))


def test_a_window_larger_than_the_image(run):
    """With ceil_mode one that begins within it is there, as torch has it; without none is."""
    x = Tensor.from_numpy(np.float32([[[[0, 1]]]]))
    window = {"kernel": (1, 3), "stride": 3, "ceil_mode": True}
    assert 1 == run(ops.max_pool2d, x, **window).item()
    assert 0.5 == run(ops.avg_pool2d, x, **window).item()
    for too_large in ({**window, "ceil_mode": False}, {**window, "stride": 1}):
        with pytest.raises(ShapeError, match="exceeds the input"):
            ops.max_pool2d(x, **too_large)


@pytest.mark.parametrize("window", WINDOWS3, ids=str)
def test_three_dimensions(run, draw, close, same, window):
    """Videos are pooled as images are."""
    x = draw((1, 2, 5, 4, 6), dtypes.f32, 1)
    for counted in (True, False):
        actual = run(ops.avg_pool3d, Tensor.from_numpy(x), **window, count_padding=counted)
        close(ops.avg_pool3d, means(x, counted, **window), actual)
    same(largest(x, **window), run(ops.max_pool3d, Tensor.from_numpy(x), **window))
    spread = {"kernel": 2, "dilation": (2, 1, 3), "stride": 1}
    same(largest(x, **spread), run(ops.max_pool3d, Tensor.from_numpy(x), **spread))


@pytest.mark.parametrize("size", [1, (3, 4), (7, 1), 9], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.i16], ids=repr)
def test_adaptive(run, draw, close, same, dtype, size):
    """As many windows as asked for cover the image, and overlap where they must."""
    x = draw((2, 3, 7, 6), dtype, 1)
    rows, columns = each(size, 2)
    shares = [
        (
            i,
            j,
            x[:, :, i * 7 // rows : -(-(i + 1) * 7 // rows)][
                ..., j * 6 // columns : -(-(j + 1) * 6 // columns)
            ].astype(np.float64),
        )
        for i, j in np.ndindex(rows, columns)
    ]
    mean, most = np.zeros((2, 2, 3, rows, columns))
    for i, j, share in shares:
        mean[:, :, i, j], most[:, :, i, j] = share.mean((2, 3)), share.max((2, 3))
    same(most, run(ops.adaptive_max_pool2d, Tensor.from_numpy(x), size))
    if dtype.is_float:
        close(
            ops.adaptive_avg_pool2d, mean, run(ops.adaptive_avg_pool2d, Tensor.from_numpy(x), size)
        )


def test_adaptive_errors():
    """Ranks, images without elements and sizes that are not positive are errors."""
    x = Tensor.from_numpy(np.ones((1, 2, 5, 5), np.float32))
    with pytest.raises(OpError, match=r"adaptive_avg_pool2d: size 0 must be 2 numbers"):
        ops.adaptive_avg_pool2d(x, 0)
    with pytest.raises(ShapeError, match=r"adaptive_max_pool2d: x is \(batch, channels, height"):
        ops.adaptive_max_pool2d(x.narrow(2, 0, 0), 1)


@every_dtype
@pytest.mark.parametrize("window", [*WINDOWS, {"kernel": 2, "dilation": (2, 3)}], ids=str)
def test_max_pool2d(run, draw, same, dtype, window):
    """The largest of each window in every dtype; padding never wins; NaN is the largest."""
    x = draw((2, 3, 7, 8), dtype, 1)
    if dtype.is_float:
        x = -np.abs(x)
        x[0, 0, 3, 3] = np.nan
    elif dtype.kind == "int":
        x = (-np.abs(x) - 1).astype(dtype.numpy)
    same(largest(x, **window), run(ops.max_pool2d, Tensor.from_numpy(x), **window))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.f8e4m3, dtypes.i16], ids=repr)
def test_windows_of_padding_alone(run, same, dtype):
    """A dilated window that sees no element gives the least value."""
    x = Tensor.from_numpy(np.ones((1, 1, 4, 4), dtype.numpy))
    least = {dtypes.i16: -(2.0**15), dtypes.f8e4m3: np.nan}.get(dtype, -np.inf)
    same(least, run(ops.max_pool2d, x, 2, padding=1, dilation=5))


@pytest.mark.parametrize("dtype", [d for d in PLAIN if d.is_integer], ids=repr)
def test_integer_extremes(run, dtype):
    """Neighbours at the ends of the range are told apart, which floats could not."""
    info = np.iinfo(dtype.numpy)
    x = np.array([[info.max - 1, info.max], [info.min, info.min + 1]], dtype.numpy)
    x = Tensor.from_numpy(x.reshape(1, 1, 2, 2))
    assert [info.max] == run(ops.max_pool2d, x, 2).reshape(-1).tolist()
    columns = run(ops.max_pool2d, x, (1, 2), padding=(0, 1), stride=1)
    assert [
        info.max - 1,
        info.max,
        info.max,
        info.min,
        info.min + 1,
        info.min + 1,
    ] == columns.reshape(-1).tolist()


@pytest.mark.parametrize("op", [ops.avg_pool2d, ops.max_pool2d], ids=lambda op: op.name)
def test_pool_layouts(run, lay, draw, how, op):
    """Images may lie anywhere; none give none."""
    x = lay(draw((2, 3, 5, 4), dtypes.bf16), how)
    plain = Tensor.from_numpy(x.numpy().copy())
    np.testing.assert_array_equal(run(op, plain, 2, padding=1), run(op, x, 2, padding=1))
    nobody = Tensor.from_numpy(np.empty((0, 3, 5, 4), np.float32))
    assert (0, 3, 2, 2) == run(op, nobody, 2).shape


@pytest.mark.parametrize("op", [ops.avg_pool2d, ops.max_pool2d], ids=lambda op: op.name)
def test_pool_errors(op):
    """Ranks, attributes and windows that do not fit are errors that name the op."""
    x = Tensor.from_numpy(np.ones((1, 2, 5, 5), np.float32))
    for shape in ((2, 5, 5), (1, 2, 0, 5)):
        with pytest.raises(ShapeError, match=rf"{op.name}: x is \(batch, channels, height, width"):
            op(Tensor.from_numpy(np.ones(shape, np.float32)), 2)
    with pytest.raises(OpError, match=rf"{op.name}: padding \(2, 2\) must be at most half the ker"):
        op(x, 3, padding=2)
    with pytest.raises(ShapeError, match=rf"{op.name}: a kernel of \(6, 1\) .* exceeds the input"):
        op(x, (6, 1))
    for attributes in ({"kernel": 0}, {"kernel": (1, 2, 3)}, {"kernel": 2, "stride": 0}):
        with pytest.raises(OpError, match=rf"{op.name}: (kernel|stride) .* must be 2 numbers"):
            op(x, **attributes)
    whole = Tensor.from_numpy(np.ones((1, 2, 5, 5), np.int32))
    if op is ops.avg_pool2d:
        with pytest.raises(DTypeError, match=r"avg_pool2d: x is i32; supported: f64"):
            op(whole, 2)
