"""Interpolation against loops over its definition, torch's conventions and Pillow's filters."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import OpError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)

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
        (ops.resize2d, flat, line, (3, 3)),
    ):
        for bad in (wrong, x.narrow(2, 0, 0)):
            with pytest.raises(ShapeError, match=rf"{op.name}: x is \(batch, channels, sizes\)"):
                op(bad, size)
        with pytest.raises(OpError, match=rf"{op.name}: size .* must be . positive numbers"):
            op(x, 0 if size == 3 else (3, 0))
    with pytest.raises(OpError, match=r"upsample_nearest2d: size \(3,\) must be 2 positive"):
        ops.upsample_nearest2d(flat, (3,))


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("mode", FILTERS)
@pytest.mark.parametrize("size", [(5, 7), (3, 20), (12, 2), (1, 1), (9, 11)], ids=str)
def test_antialias_is_pillows(run, draw, close, mode, size):
    """Filters widen with the reduction, and end at the edges, as Pillow's do."""
    x = draw((1, 2, 9, 11), dtypes.f32, 1)
    expected = [
        np.asarray(Image.fromarray(plane).resize((size[1], size[0]), FILTERS[mode]))
        for plane in x[0]
    ]
    actual = run(ops.resize2d, Tensor.from_numpy(x), size, mode=mode, antialias=True)
    close(ops.resize2d, np.array([expected]), actual)


@every_float
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("align_corners", [False, True])
def test_resize_bilinear(run, draw, close, dtype, size, align_corners):
    """Without antialias, bilinear is what upsample_bilinear2d gives."""
    x = draw((2, 3, 5, 7), dtype, 1)
    truth = bilinear(x, size, align_corners=align_corners)
    actual = run(ops.resize2d, Tensor.from_numpy(x), size, align_corners=align_corners)
    close(ops.resize2d, truth, actual)


@pytest.mark.parametrize("align_corners", [False, True])
def test_bicubic(run, close, align_corners):
    """Elements keep their values; between them, away from the edges, a line is bent little."""
    line = np.arange(12, dtype=np.float64)
    x = Tensor.from_numpy(np.broadcast_to(line, (1, 1, 12, 12)).copy())
    size = (23, 23) if align_corners else (24, 24)
    y = run(ops.resize2d, x, size, mode="bicubic", align_corners=align_corners)[0, 0, 11]
    where = np.arange(23) / 2 if align_corners else (np.arange(24) + 0.5) / 2 - 0.5
    inside = (where >= 2) & (where <= 9)
    bend = np.where(where % 1 == 0, 0, np.abs(y - where))
    assert bend[inside].max() < 0.06
    if align_corners:
        close(ops.resize2d, line, y[::2])


def test_resize_by_scale(run, draw):
    """A scale counts where it is given, not the size that was rounded from it."""
    x = Tensor.from_numpy(draw((1, 1, 9, 9), dtypes.f64, 1))
    by_size, by_scale, same_scale = (
        run(ops.resize2d, x, (6, 6), scale=scale) for scale in (None, (0.7, 0.7), (6 / 9, 6 / 9))
    )
    assert np.abs(by_size - by_scale).max() > 0.01
    np.testing.assert_allclose(by_size, same_scale, rtol=1e-12)
    source = 0.5 / 0.7 - 0.5
    column = x.numpy()[0, 0, :, 0] * (1 - source) + x.numpy()[0, 0, :, 1] * source
    expected = column[0] * (1 - source) + column[1] * source
    np.testing.assert_allclose(by_scale[0, 0, 0, 0], expected, rtol=1e-12)


def test_resize_by_scale_alone(run, draw):
    """The size is that of torch then: rounded down; one number is for both dimensions."""
    x = Tensor.from_numpy(draw((1, 1, 9, 5), dtypes.f64, 1))
    alone = run(ops.resize2d, x, scale=1.7)
    assert alone.shape == (1, 1, 15, 8)
    np.testing.assert_array_equal(alone, run(ops.resize2d, x, (15, 8), scale=(1.7, 1.7)))
    assert run(ops.resize2d, x, scale=(0.5, 2.0)).shape == (1, 1, 4, 10)


def test_resize_errors():
    """Other modes, and scales that mean nothing, are errors that name what is supported."""
    x = Tensor.from_numpy(np.ones((1, 1, 2, 2), np.float32))
    with pytest.raises(OpError, match=r"resize2d: mode 'area' must be one of bilinear, bicubic"):
        ops.resize2d(x, (3, 3), mode="area")
    for scale in ((0.5, 0.0), (0.5,), -1.0, float("inf"), float("nan")):
        with pytest.raises(OpError, match=r"scale .* must be a positive finite number, or two"):
            ops.resize2d(x, (3, 3), scale=scale)
    with pytest.raises(OpError, match=r"goes without align_corners: give the size alone"):
        ops.resize2d(x, scale=2.0, align_corners=True)
    with pytest.raises(
        OpError, match=r"give the size of the result, \(height, width\), or a scale"
    ):
        ops.resize2d(x)
