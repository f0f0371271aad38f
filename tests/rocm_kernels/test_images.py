"""Pooling, interpolation and windows on a device, against numpy and the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import normal

from propolis import Tensor
from propolis import dtypes
from propolis import ops


def numbers(dtype, *shape):
    """Random elements of any plain dtype."""
    if dtype.is_float:
        return normal(dtype, *shape)
    limits = np.iinfo(dtype.numpy)
    low, high = max(int(limits.min), -(2**62)), min(int(limits.max), 2**62)
    return np.random.default_rng(shape).integers(low, high, shape).astype(dtype.numpy)


def same_as_cpu(rocm, op, x, *arguments, **attributes):
    """The bits that the CPU gives, of a tensor or a view."""
    actual = op(x, *arguments, **attributes).numpy()
    expected = op(Tensor.from_numpy(x.numpy()), *arguments, **attributes).numpy()
    np.testing.assert_array_equal(actual, expected)


VIEWS = {
    "whole": lambda t: t,
    "channels last": lambda t: t.permute(0, 3, 1, 2),
    "slice": lambda t: t.narrow(3, 1, t.shape[3] - 2).narrow(2, 1, t.shape[2] - 1),
    "repeated": lambda t: t.narrow(1, 0, 1).broadcast_to(*t.shape),
}
MOVED = (dtypes.u8, dtypes.f16, dtypes.i32, dtypes.i64)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_moved_as_they_are(rocm, dtype, view) -> None:
    """Nearest neighbours, windows and largest elements are the CPU's, packs and tails, any view."""
    x = VIEWS[view](Tensor.from_numpy(numbers(dtype, 2, 3, 9, 13), rocm))
    for size in ((18, 26), (5, 24), (1, 1), (9, 40)):
        same_as_cpu(rocm, ops.upsample_nearest2d, x, size)
    for kernel, stride in (((3, 3), 1), ((1, 1), 2), ((2, 1), (1, 3))):
        same_as_cpu(rocm, ops.im2col, x, kernel, stride=stride, padding=(1, 0))
    for kernel, dilation in ((3, 1), ((2, 3), 2)):
        same_as_cpu(rocm, ops.max_pool2d, x, kernel, stride=2, padding=1, dilation=dilation)


POOLS = [
    ("avg_pool3d", 3, {"stride": 2, "padding": 1, "ceil_mode": True}),
    ("avg_pool3d", (1, 2, 3), {"count_padding": False, "padding": (0, 1, 0)}),
    ("max_pool3d", 2, {"dilation": (1, 2, 3), "padding": 1}),
    ("avg_pool2d", 2, {"stride": (2, 4), "padding": 1, "ceil_mode": True}),
    ("max_pool2d", 2, {"stride": (2, 4), "padding": 1, "ceil_mode": True}),
    *(("adaptive_avg_pool2d", (3, size), {}) for size in (1, 4, 9, 20)),
    ("adaptive_max_pool2d", (3, 4), {}),
]


@pytest.mark.parametrize(("name", "argument", "attributes"), POOLS)
def test_other_windows(rocm, name, argument, attributes) -> None:
    """Windows of three dimensions, some beyond the padding, and any share of an image."""
    x = normal(dtypes.f64, *((2, 2, 5, 7, 9) if "3d" in name else (2, 3, 7, 9)))
    given = Tensor.from_numpy(x, rocm), Tensor.from_numpy(x)
    actual, expected = (getattr(ops, name)(t, argument, **attributes).numpy() for t in given)
    np.testing.assert_allclose(actual, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("count", [True, False])
def test_means_of_windows(rocm, count) -> None:
    """Padding counts as elements of a window, or does not."""
    x = normal(dtypes.f64, 2, 3, 9, 13)
    given = {"stride": (1, 2), "padding": (1, 0), "count_padding": count}
    actual = ops.avg_pool2d(Tensor.from_numpy(x, rocm), (3, 2), **given).numpy()
    expected = ops.avg_pool2d(Tensor.from_numpy(x), (3, 2), **given).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-14, atol=1e-15)


def test_nearest_of_any_size(rocm) -> None:
    """Whole numbers say where an element lies: no rounding moves one, however far out."""
    x = np.arange(1001, dtype=np.int32).reshape(1, 1, -1)
    for size in (7, 1000, 1001, 1002, 7007):
        actual = ops.upsample_nearest1d(Tensor.from_numpy(x, rocm), size).numpy()
        np.testing.assert_array_equal(actual[0, 0], np.arange(size) * 1001 // size)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_blends(rocm, corners, view) -> None:
    """Larger, smaller and single rows and columns are blended as the CPU does it."""
    x = VIEWS[view](Tensor.from_numpy(normal(dtypes.f64, 2, 3, 5, 7), rocm))
    for size in ((10, 14), (3, 21), (1, 2), (5, 7)):
        actual = ops.upsample_bilinear2d(x, size, align_corners=corners).numpy()
        cpu = Tensor.from_numpy(x.numpy())
        expected = ops.upsample_bilinear2d(cpu, size, align_corners=corners).numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)


FILTERS = [
    {"antialias": antialias, **more}
    for antialias in (False, True)
    for more in ({}, {"align_corners": True}, {"scale": (0.7, 2.3)})
]


@pytest.mark.parametrize("filters", FILTERS, ids=lambda f: "-".join(n for n in f if f[n]))
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_filters(rocm, mode, filters) -> None:
    """Larger, smaller and single rows and columns are filtered as the CPU does it, of views too."""
    whole = Tensor.from_numpy(normal(dtypes.f64, 2, 3, 7, 9), rocm)
    for x in (whole, VIEWS["channels last"](whole), VIEWS["slice"](whole)):
        for size in ((10, 20), (2, 21), (1, 3), (7, 9)):
            actual = ops.resize2d(x, size, mode=mode, **filters).numpy()
            cpu = Tensor.from_numpy(x.numpy())
            expected = ops.resize2d(cpu, size, mode=mode, **filters).numpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


def test_what_no_filter_reaches(rocm) -> None:
    """Where a scale ends the image before the result does, nothing is left, or the last element."""
    x = Tensor.from_numpy(np.full((1, 1, 3, 1), 2, np.float32), rocm)
    given = {"mode": "bicubic", "scale": (0.25, 1.0)}
    y = ops.resize2d(x, (5, 1), antialias=True, **given).numpy()
    assert [2, 2, 2, 0, 0] == pytest.approx(y.ravel().tolist())
    y = ops.resize2d(x, (5, 1), **given).numpy()
    assert [2] * 5 == pytest.approx(y.ravel().tolist())


def test_windows_of_padding_alone(rocm) -> None:
    """A window that a dilation takes past the image has the least value; NaN wins elsewhere."""
    x = np.zeros((1, 1, 1, 2), np.float32)
    x[..., 1] = np.nan
    for dtype, least in ((dtypes.f32, -np.inf), (dtypes.i16, -(2**15))):
        with np.errstate(invalid="ignore"):
            tensor = Tensor.from_numpy(x.astype(dtype.numpy), rocm)
        y = ops.max_pool2d(tensor, (2, 2), stride=1, padding=1, dilation=(2, 1)).numpy()
        assert (y == least).all()
    y = ops.max_pool2d(Tensor.from_numpy(x, rocm), (1, 2), stride=1, padding=(0, 1)).numpy()
    np.testing.assert_array_equal(y[0, 0, 0], [0, np.nan, np.nan])
