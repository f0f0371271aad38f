"""matmul and linear against sums of products in f64."""

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
from propolis.opspec.spec import DEFAULT_TOLERANCE


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def product(a, b):
    """``a @ b`` in f64, by the definition."""
    a, b = (np.asarray(m).astype(np.float64) for m in (a, b))
    with np.errstate(all="ignore"):
        return (a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2)


def check(close, op, dtype, actual, a, b, plus=0.0):
    """
    Whether ``actual`` is ``a @ b + plus``.

    The spec's tolerance is relative to the result.  Where terms cancel, the error of a
    sum is relative to the sum of their magnitudes: that is added to atol.
    """
    truth = product(a, b) + plus
    rtol, atol = DEFAULT_TOLERANCE[dtype]
    with np.errstate(all="ignore"):
        size = product(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    rounding = 1e-15 if dtype is dtypes.f64 else 1e-6
    largest = float(np.nan_to_num(size, nan=0, posinf=0).max(initial=0))
    close(op, truth, actual, (rtol, atol + rounding * largest))


SHAPES = [
    ((1, 1), (1, 1)),
    ((3, 4), (4, 5)),
    ((1, 129), (129, 7)),
    ((33, 65), (65, 31)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((0, 4), (4, 5)),
    ((3, 4), (4, 0)),
    ((3, 0), (0, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 0, 0), (0, 0)),
]


@every_float
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul(run, draw, close, dtype, left, right):
    """Matrices and stacks of them multiply in every float dtype; sums of nothing are zeros."""
    a, b = draw(left, dtype, 1), draw(right, dtype, 2)
    actual = run(ops.matmul, Tensor.from_numpy(a), Tensor.from_numpy(b))
    check(close, ops.matmul, dtype, actual, a, b)


@every_float
def test_matmul_layouts(run, lay, draw, close, how, dtype):
    """Operands multiply the same wherever their elements lie, on either side."""
    a, b = lay(draw((2, 5, 6), dtype, 1), how), lay(draw((2, 6, 7), dtype, 2), how)
    check(close, ops.matmul, dtype, run(ops.matmul, a, b), a.numpy(), b.numpy())
    turned = b.permute(0, 2, 1)
    back = a.permute(0, 2, 1)
    check(close, ops.matmul, dtype, run(ops.matmul, turned, back), turned.numpy(), back.numpy())


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=repr)
@pytest.mark.parametrize("tokens", [1, 4])
def test_one_tensor_twice(run, draw, close, dtype, tokens):
    """A tensor may be multiplied with itself and with its transpose."""
    array = draw((6, 6), dtype)
    x = Tensor.from_numpy(array)
    check(close, ops.matmul, dtype, run(ops.matmul, x, x), array, array)
    check(close, ops.matmul, dtype, run(ops.matmul, x, x.permute(1, 0)), array, array.T)
    rows = x.narrow(0, 0, tokens)
    check(close, ops.linear, dtype, run(ops.linear, rows, x), array[:tokens], array.T)


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("columns", [1, 3, 64])
def test_ieee(run, close, rows, columns):
    """Zero times infinity is NaN, whatever path a product of this size takes."""
    a, b = np.zeros((rows, 70), np.float32), np.ones((70, columns), np.float32)
    a[0, :3] = [1, 2, 3]
    b[10, 0], b[2, -1] = np.inf, np.nan
    actual = run(ops.matmul, Tensor.from_numpy(a), Tensor.from_numpy(b))
    close(ops.matmul, product(a, b), actual)
    actual = run(ops.linear, Tensor.from_numpy(a), Tensor.from_numpy(b.T.copy()))
    close(ops.linear, product(a, b), actual)


@every_float
def test_sums_are_wide(run, same, dtype):
    """A sum that the dtype cannot count up to is right: it is in f32 or wider."""
    ones = np.ones((1, 4096), dtype.numpy)
    largest = 448 if dtype is dtypes.f8e4m3 else 4096
    small = (ones.astype(np.float64) * largest / 4096).astype(dtype.numpy)
    truth = float(product(small, ones.T).item())
    actual = run(ops.matmul, Tensor.from_numpy(small), Tensor.from_numpy(ones.T.copy()))
    same([[truth]], actual)


def test_overflow_of_the_result(run, same):
    """A sum too large for the output dtype is infinite, in f8e4m3 NaN, without warning."""
    kinds = {dtypes.f16: np.inf, dtypes.f8e4m3: np.nan, dtypes.f8e5m2: np.inf, dtypes.bf16: 102400}
    for dtype, expected in kinds.items():
        x = Tensor.from_numpy(np.full((4, 4), 160, dtype.numpy))
        same(np.full((4, 4), expected), run(ops.matmul, x, x))


@every_float
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "out"), [((4,), 3), ((1, 1, 65), 7), ((2, 3, 5), 1), ((0, 4), 3), ((3, 0), 2)]
)
def test_linear(run, draw, close, dtype, bias, shape, out):
    """``x @ w.T + bias`` for any number of leading dimensions."""
    x, w = draw(shape, dtype, 1), draw((out, shape[-1]), dtype, 2)
    plus = draw((out,), dtype, 3) if bias else None
    extra = () if plus is None else (Tensor.from_numpy(plus),)
    actual = run(ops.linear, Tensor.from_numpy(x), Tensor.from_numpy(w), *extra)
    rows = (
        x.reshape(-1, shape[-1]) if x.size else np.empty((actual.size // out, shape[-1]), x.dtype)
    )
    added = 0.0 if plus is None else plus.astype(np.float64)
    check(close, ops.linear, dtype, actual.reshape(-1, out), rows, w.T, added)
    assert (*shape[:-1], out) == actual.shape


def whole(*shape):
    """Any numbers of i8."""
    return np.random.default_rng(shape).integers(-128, 127, shape, np.int8, endpoint=True)


def i32(*arrays):
    """The same numbers as numpy's own 32-bit integers, which wrap around."""
    return tuple(a.astype(np.int32) for a in arrays)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("depth", [0, 1, 300])
def test_whole_numbers(run, lay, how, rows, depth):
    """Products of i8 are i32 and exact, of any layout, with a bias in i32 and without."""
    a, b = lay(whole(2, rows, depth), how), lay(whole(depth, 7), how)
    left, right = i32(a.numpy(), b.numpy())
    actual = run(ops.matmul, a, b)
    assert actual.dtype == np.int32
    assert (left @ right == actual).all()
    weight, bias = lay(whole(7, depth), how), np.arange(7, dtype=np.int32) * 10**8
    expected = left @ weight.numpy().astype(np.int32).T
    assert (expected == run(ops.linear, a, weight)).all()
    assert (expected + bias == run(ops.linear, a, weight, Tensor.from_numpy(bias))).all()


def test_whole_sums_wrap_around(run):
    """What i32 cannot hold is taken modulo 2**32, as numpy does: sums, and a sum and its bias."""
    low = np.full((1, 300_000), -128, np.int8)
    (wide,) = i32(low)
    x, bias = Tensor.from_numpy(low), np.array([2**31 - 1], np.int32)
    product = wide @ wide.T
    assert product[0, 0] == 300_000 * 2**14 - 2**32
    assert (product == run(ops.matmul, x, x.transpose(0, 1))).all()
    one = Tensor.from_numpy(np.ones((1, 1), np.int8))
    assert [[-(2**31)]] == run(ops.linear, one, one, Tensor.from_numpy(bias)).tolist()


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,), (0, 4), (3, 0)])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16], ids=repr)
def test_linear_without_outputs(run, shape, dtype):
    """A layer of no output features gives a tensor without elements, not an error."""
    x = Tensor.from_numpy(np.ones(shape, dtype.numpy))
    w = Tensor.from_numpy(np.ones((0, shape[-1]), dtype.numpy))
    bias = Tensor.from_numpy(np.ones(0, dtype.numpy))
    assert (*shape[:-1], 0) == run(ops.linear, x, w).shape
    assert (*shape[:-1], 0) == run(ops.linear, x, w, bias).shape


@every_float
def test_linear_layouts(run, lay, draw, close, how, dtype):
    """Inputs, weights and bias may lie anywhere."""
    x, w = lay(draw((2, 5, 6), dtype, 1), how), lay(draw((7, 6), dtype, 2), how)
    bias = lay(draw((7,), dtype, 3), how)
    actual = run(ops.linear, x, w, bias)
    rows, plus = x.numpy().reshape(10, 6), bias.numpy().astype(np.float64)
    check(close, ops.linear, dtype, actual.reshape(10, 7), rows, w.numpy().T, plus)


@given(
    m=st.integers(0, 9), k=st.integers(0, 70), n=st.integers(1, 9), dtype=st.sampled_from(FLOATS)
)
@settings(max_examples=40, deadline=None)
def test_any_sizes(run, draw, close, m, k, n, dtype):
    """Both products agree with the definition for any sizes."""
    a, b = draw((m, k), dtype, 1), draw((k, n), dtype, 2)
    left, right = Tensor.from_numpy(a), Tensor.from_numpy(b)
    check(close, ops.matmul, dtype, run(ops.matmul, left, right), a, b)
    check(close, ops.linear, dtype, run(ops.linear, left, right.permute(1, 0)), a, b)


def f32(*shape):
    """A tensor of ones."""
    return Tensor.from_numpy(np.ones(shape, np.float32))


@pytest.mark.parametrize(("a", "b"), [((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (4, 2)), ((), ())])
def test_matmul_shape_errors(a, b):
    """Vectors and sizes that do not fit are errors that give the rule and both shapes."""
    with pytest.raises(ShapeError, match=r"matmul: a is \(\.\.\., m, k\).*; got a .*b ") as caught:
        ops.matmul(f32(*a), f32(*b))
    assert str(a) in str(caught.value)


def test_matmul_other_errors():
    """Stacks that do not broadcast, mixed dtypes and integers are errors."""
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2,\) and \(3,\) do not broadcast"):
        ops.matmul(f32(2, 4, 4), f32(3, 4, 4))
    with pytest.raises(DTypeError, match=r"matmul: a is f32, b is f64; .*ops.cast"):
        ops.matmul(f32(2, 2), Tensor.from_numpy(np.ones((2, 2))))
    whole = Tensor.from_numpy(np.ones((2, 2), np.int32))
    with pytest.raises(DTypeError, match=r"matmul: a is i32; supported: f64, f32, f16, bf16, f8"):
        ops.matmul(whole, whole)


@pytest.mark.parametrize(
    ("x", "w", "bias", "rule"),
    [
        ((3,), (3,), None, r"x is \(\.\.\., in\), w is \(out, in\)"),
        ((), (3, 1), None, r"x is \(\.\.\., in\), w is \(out, in\)"),
        ((2, 3), (3, 2), None, r"x is \(\.\.\., in\), w is \(out, in\)"),
        ((2, 3), (4, 3), (3,), r"bias is \(out,\)"),
        ((2, 3), (4, 3), (1, 4), r"bias is \(out,\)"),
    ],
)
def test_linear_shape_errors(x, w, bias, rule):
    """Sizes that do not fit are errors that give the rule and the shapes."""
    extra = () if bias is None else (f32(*bias),)
    with pytest.raises(ShapeError, match=f"linear: {rule}; got "):
        ops.linear(f32(*x), f32(*w), *extra)


def test_linear_dtype_errors():
    """Mixed dtypes, of the bias too, and integers are errors."""
    half = Tensor.from_numpy(np.ones(4, np.float16))
    with pytest.raises(
        DTypeError, match=r"linear: x is f32, bias is f16; supported: a bias in f32"
    ):
        ops.linear(f32(2, 3), f32(4, 3), half)
    with pytest.raises(DTypeError, match=r"linear: x is f32, w is f16; they must"):
        ops.linear(f32(2, 4), half)
    i8, bias = (Tensor.from_numpy(np.ones(s, np.int8)) for s in ((2, 2), 2))
    with pytest.raises(
        DTypeError, match=r"linear: x is i8, bias is i8; supported: a bias in i32; ops.cast"
    ):
        ops.linear(i8, i8, bias)
    whole = Tensor.from_numpy(np.ones((2, 2), np.int64))
    with pytest.raises(DTypeError, match=r"linear: x is i64; supported: f64, f32"):
        ops.linear(whole, whole)
