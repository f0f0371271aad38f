"""rms_norm against its definition in f64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import ShapeError


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def rms_norm(x, weight, eps=1e-5):
    """``x / sqrt(mean(x ** 2) + eps) * weight`` in f64."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    with np.errstate(all="ignore"):
        square = (x * x).sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)
        return x / np.sqrt(square + eps) * weight


@every_float
def test_layouts(run, lay, draw, close, how, dtype):
    """Every float dtype in every layout gives the definition's values."""
    x, weight = lay(draw((3, 4, 6), dtype, 1), how), lay(draw((6,), dtype, 2), how)
    close(ops.rms_norm, rms_norm(x.numpy(), weight.numpy()), run(ops.rms_norm, x, weight))


@every_float
@pytest.mark.parametrize(
    "shape", [(1,), (5,), (0,), (3, 0), (0, 3), (1, 1, 576), (2, 3, 129), (4, 1)]
)
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.5])
def test_shapes(run, draw, close, dtype, shape, eps):
    """Vectors, tensors without elements and odd widths work, with any eps."""
    x, weight = draw(shape, dtype, 1), draw(shape[-1:], dtype, 2)
    actual = run(ops.rms_norm, Tensor.from_numpy(x), Tensor.from_numpy(weight), eps)
    close(ops.rms_norm, rms_norm(x, weight, eps), actual)
    by_name = ops.rms_norm(Tensor.from_numpy(x), Tensor.from_numpy(weight), eps=eps)
    np.testing.assert_array_equal(actual, by_name.numpy())


@every_float
def test_one_tensor_twice(run, draw, close, dtype):
    """A vector may be its own weight."""
    x = draw((33,), dtype)
    tensor = Tensor.from_numpy(x)
    close(ops.rms_norm, rms_norm(x, x), run(ops.rms_norm, tensor, tensor))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.f32], ids=repr)
def test_squares_are_wide(run, close, dtype):
    """Numbers whose squares only f32 holds, large and small, are normalised."""
    large = 3e4 if dtype is dtypes.f16 else 1e15
    small = 1e-4 if dtype is dtypes.f16 else 1e-12
    x = np.array([[large, -large, large / 2], [small, 0, -small]]).astype(dtype.numpy)
    weight = np.ones(3, dtype.numpy)
    actual = run(ops.rms_norm, Tensor.from_numpy(x), Tensor.from_numpy(weight), 1e-30)
    close(ops.rms_norm, rms_norm(x, weight, 1e-30), actual)


@pytest.mark.parametrize("how", ["contiguous", "step", "permuted", "repeated"])
def test_wide_rows(run, lay, close, how):
    """The mean over many elements is as exact as the tolerance asks, in any layout."""
    x = np.random.default_rng(5).random((2, 100_001), np.float32) + 1
    weight = np.ones(100_001, np.float32)
    tensor = lay(x, how)
    actual = run(ops.rms_norm, tensor, Tensor.from_numpy(weight))
    close(ops.rms_norm, rms_norm(tensor.numpy(), weight), actual)


def test_one_element_repeated(run, close):
    """A row that is one element in memory, at stride 0, is as exact as any other."""
    x = np.array([[1.1]], np.float32)
    tensor = Tensor.from_numpy(x).broadcast_to(2, 50_000)
    weight = Tensor.from_numpy(np.ones(1, np.float32)).broadcast_to(50_000)
    truth = rms_norm(tensor.numpy(), weight.numpy())
    close(ops.rms_norm, truth, run(ops.rms_norm, tensor, weight))


def test_ieee(run, same):
    """Infinity and NaN in a row follow the definition, other rows are untouched by them."""
    x = np.array([[np.inf, 1], [np.nan, 1], [0, 0], [1, 1]], np.float32)
    weight = np.array([1, np.inf], np.float32)
    actual = run(ops.rms_norm, Tensor.from_numpy(x), Tensor.from_numpy(weight), 0.0)
    same([[np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan], [1, np.inf]], actual)
    kept = run(ops.rms_norm, Tensor.from_numpy(x[2:]), Tensor.from_numpy(weight))
    same([0.0, np.nan], kept[0])


@given(rows=st.integers(0, 4), width=st.integers(0, 300), dtype=st.sampled_from(FLOATS))
@settings(max_examples=40, deadline=None)
def test_any_sizes(run, draw, close, rows, width, dtype):
    """Any number of rows of any width agrees with the definition."""
    x, weight = draw((rows, width), dtype, 1), draw((width,), dtype, 2)
    actual = run(ops.rms_norm, Tensor.from_numpy(x), Tensor.from_numpy(weight))
    close(ops.rms_norm, rms_norm(x, weight), actual)


@pytest.mark.parametrize(("x", "weight"), [((), ()), ((2, 3), (2,)), ((2, 3), (1, 3)), ((3,), ())])
def test_shape_errors(x, weight):
    """A weight of another width, or a scalar, is an error that gives the rule."""
    with pytest.raises(ShapeError, match=r"rms_norm: x is \(\.\.\., width\), weight is \(width,\)"):
        ops.rms_norm(*(Tensor.from_numpy(np.ones(s, np.float32)) for s in (x, weight)))


def test_dtype_errors():
    """Mixed dtypes and integers are errors that name the op."""
    half, single = (Tensor.from_numpy(np.ones(3, d)) for d in (np.float16, np.float32))
    with pytest.raises(DTypeError, match=r"rms_norm: x is f16, weight is f32; .*ops.cast"):
        ops.rms_norm(half, single)
    whole = Tensor.from_numpy(np.ones(3, np.uint8))
    with pytest.raises(DTypeError, match=r"rms_norm: x is u8; supported: f64, f32, f16, bf16, f8"):
        ops.rms_norm(whole, whole)
