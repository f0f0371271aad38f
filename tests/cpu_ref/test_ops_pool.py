"""Pooling and interpolation against loops over their definitions."""

from __future__ import annotations

import math

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


def pair(sizes):
    """One number for both dimensions, or one for each."""
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def seen(x, kernel, stride=None, padding=0, dilation=1):
    """For each place of the result, the elements of its window that are in the image."""
    (kh, kw), (ph, pw), (dh, dw) = map(pair, (kernel, padding, dilation))
    sh, sw = (kh, kw) if stride is None else pair(stride)
    height, width = x.shape[2:]
    rows = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    columns = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    found = {}
    for i, j in np.ndindex(rows, columns):
        places = [(i * sh - ph + a * dh, j * sw - pw + b * dw) for a, b in np.ndindex(kh, kw)]
        found[i, j] = [x[:, :, y, z] for y, z in places if 0 <= y < height and 0 <= z < width]
    return (*x.shape[:2], rows, columns), found


@every_float
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("counted", [True, False])
def test_avg_pool2d(run, draw, close, dtype, window, counted):
    """The mean of each window, with padding counted as zeros or not at all."""
    x = draw((2, 3, 7, 8), dtype, 1)
    shape, found = seen(x.astype(np.float64), **window)
    truth = np.zeros(shape)
    taps = math.prod(pair(window["kernel"]))
    for (i, j), elements in found.items():
        truth[:, :, i, j] = sum(elements) / (taps if counted else len(elements))
    actual = run(ops.avg_pool2d, Tensor.from_numpy(x), **window, count_padding=counted)
    close(ops.avg_pool2d, truth, actual)


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
    wide = x.astype(np.float64)
    shape, found = seen(wide, **window)
    expected = np.zeros(shape)
    for (i, j), elements in found.items():
        expected[:, :, i, j] = np.max(elements, axis=0)
    same(expected, run(ops.max_pool2d, Tensor.from_numpy(x), **window))


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


SIZES = [(5, 7), (1, 1), (10, 14), (3, 20), (7, 4)]


@every_dtype
@pytest.mark.parametrize("size", SIZES)
def test_nearest(run, draw, dtype, size):
    """Each element is the one it falls on, bit for bit, larger and smaller."""
    x = draw((2, 3, 5, 7), dtype, 1)
    rows, columns = (
        [i * 5 // size[0] for i in range(size[0])],
        [j * 7 // size[1] for j in range(size[1])],
    )
    expected = np.stack([x[:, :, i][:, :, columns] for i in rows], axis=2)
    assert expected.tobytes() == run(ops.upsample_nearest2d, Tensor.from_numpy(x), size).tobytes()
    line = x[:, :, 0]
    actual = run(ops.upsample_nearest1d, Tensor.from_numpy(line), size[1])
    assert np.ascontiguousarray(line[:, :, columns]).tobytes() == actual.tobytes()


def bilinear(x, size, *, align_corners):
    """Element by element from the four that surround it, in f64."""
    x = x.astype(np.float64)
    result = np.zeros((*x.shape[:2], *size))

    def source(i, n, m):
        if align_corners:
            where = i * (n - 1) / (m - 1) if m > 1 else 0.0
        else:
            where = max(0.0, (i + 0.5) * n / m - 0.5)
        low = min(int(where), n - 1)
        return low, min(low + 1, n - 1), where - low

    for i, j in np.ndindex(*size):
        (a, b, s), (c, d, t) = source(i, x.shape[2], size[0]), source(j, x.shape[3], size[1])
        top = x[:, :, a, c] * (1 - t) + x[:, :, a, d] * t
        bottom = x[:, :, b, c] * (1 - t) + x[:, :, b, d] * t
        result[:, :, i, j] = top * (1 - s) + bottom * s
    return result


@every_float
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_bilinear(run, draw, close, dtype, size, align_corners):
    """Each element is blended of four, with either convention."""
    x = draw((2, 3, 5, 7), dtype, 1)
    truth = bilinear(x, size, align_corners=align_corners)
    actual = run(ops.upsample_bilinear2d, Tensor.from_numpy(x), size, align_corners=align_corners)
    close(ops.upsample_bilinear2d, truth, actual)


def test_bilinear_of_its_own_size(run, draw):
    """The same size gives the same image."""
    x = draw((1, 2, 4, 3), dtypes.f32)
    for corners in (False, True):
        actual = run(ops.upsample_bilinear2d, Tensor.from_numpy(x), (4, 3), align_corners=corners)
        np.testing.assert_array_equal(x, actual)


def test_upsample_layouts(run, lay, draw, how):
    """Images may lie anywhere."""
    x = lay(draw((2, 3, 5, 4), dtypes.f16), how)
    plain = Tensor.from_numpy(x.numpy().copy())
    for op in (ops.upsample_nearest2d, ops.upsample_bilinear2d):
        np.testing.assert_array_equal(run(op, plain, (7, 3)), run(op, x, (7, 3)))
    line = lay(draw((2, 3, 5), dtypes.i64), how)
    plain = Tensor.from_numpy(line.numpy().copy())
    np.testing.assert_array_equal(
        run(ops.upsample_nearest1d, plain, 8), run(ops.upsample_nearest1d, line, 8)
    )


def test_upsample_errors():
    """Ranks, empty images and sizes that are not positive are errors that name the op."""
    flat, line = (Tensor.from_numpy(np.ones(s, np.float32)) for s in ((1, 1, 2, 2), (1, 1, 2)))
    for op, x, wrong, size in (
        (ops.upsample_nearest1d, line, flat, 3),
        (ops.upsample_nearest2d, flat, line, (3, 3)),
        (ops.upsample_bilinear2d, flat, line, (3, 3)),
    ):
        for bad in (wrong, x.narrow(2, 0, 0)):
            with pytest.raises(ShapeError, match=rf"{op.name}: x is \(batch, channels, sizes\)"):
                op(bad, size)
        with pytest.raises(OpError, match=rf"{op.name}: size .* must be . positive numbers"):
            op(x, 0 if size == 3 else (3, 0))
    with pytest.raises(OpError, match=r"upsample_nearest2d: size \(3,\) must be 2 positive"):
        ops.upsample_nearest2d(flat, (3,))
