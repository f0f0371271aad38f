"""Ops of one tensor against their definitions in f64, and integers against Python's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]
HAVE_INF = [d for d in FLOATS if d is not dtypes.f8e4m3]

TRUTHS = {
    ops.exp: np.exp,
    ops.expm1: np.expm1,
    ops.log: np.log,
    ops.log1p: np.log1p,
    ops.sin: np.sin,
    ops.cos: np.cos,
    ops.tanh: np.tanh,
    ops.sqrt: np.sqrt,
    ops.rsqrt: lambda x: 1 / np.sqrt(x),
    ops.recip: lambda x: 1 / x,
    ops.erf: special.erf,
    ops.sigmoid: special.expit,
    ops.silu: lambda x: x * special.expit(x),
    ops.gelu: lambda x: x * special.expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    ops.gelu_erf: lambda x: x * special.ndtr(x),
    ops.quick_gelu: lambda x: x * special.expit(1.702 * x),
    ops.softplus: lambda x: np.logaddexp(x, 0.0),
}
# Exact in every dtype, or rounded once.
EXACT = {
    ops.abs: np.abs,
    ops.neg: np.negative,
    ops.sqr: np.square,
    ops.relu: lambda x: np.where(x < 0, 0, x),
    ops.sign: np.sign,
    ops.floor: np.floor,
    ops.ceil: np.ceil,
    ops.trunc: np.trunc,
    ops.round: np.rint,
}
WHOLE = {
    ops.abs: abs,
    ops.neg: lambda n: -n,
    ops.sqr: lambda n: n * n,
    ops.relu: lambda n: max(n, 0),
    ops.sign: lambda n: (n > 0) - (n < 0),
    ops.floor: lambda n: n,
    ops.ceil: lambda n: n,
    ops.trunc: lambda n: n,
    ops.round: lambda n: n,
}

every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
every_function = pytest.mark.parametrize("op", TRUTHS, ids=lambda op: op.name)
every_exact = pytest.mark.parametrize("op", EXACT, ids=lambda op: op.name)


def quietly(function, *values):
    """A truth in f64: overflow, NaN and division by zero are results."""
    with np.errstate(all="ignore"):
        return function(*(v.astype(np.float64) for v in values))


def wrapped(numbers, dtype):
    """Python's integers modulo the width of the dtype."""
    span, top = 2 ** (8 * dtype.block_bytes), int(np.iinfo(dtype.numpy).max)
    return [n % span - span if n % span > top else n % span for n in numbers]


def saturated(number, dtype):
    """A Python number truncated and clamped to an integer dtype."""
    info = np.iinfo(dtype.numpy)
    if math.isinf(number):
        return info.max if number > 0 else info.min
    return min(max(int(number), info.min), info.max)


def bits(dtype, count=20000):
    """Every bit pattern of a narrow float, or many of a wide one."""
    width = dtype.block_bytes
    if width <= 2:
        raw = np.arange(2 ** (8 * width), dtype=f"u{width}")
    else:
        raw = np.random.default_rng(1).integers(0, 2 ** (8 * width), count, f"u{width}")
    return raw.view(dtype.numpy)


@every_function
@every_float
def test_floats(run, draw, close, op, dtype):
    """Every function of every float dtype gives the definition's values."""
    x = draw((7, 33), dtype, 1, 3.0)
    close(op, quietly(TRUTHS[op], x), run(op, Tensor.from_numpy(x)))


@pytest.mark.parametrize("op", [*TRUTHS, *EXACT], ids=lambda op: op.name)
def test_layouts(run, lay, draw, close, how, op):
    """The elements may lie anywhere."""
    truth = {**TRUTHS, **EXACT}[op]
    for dtype in (dtypes.f32, dtypes.bf16):
        x = lay(draw((3, 4, 5), dtype, 1), how)
        close(op, quietly(truth, x.numpy()), run(op, x))


@pytest.mark.parametrize("op", [*TRUTHS, *EXACT], ids=lambda op: op.name)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (129,)])
def test_shapes(run, draw, close, op, shape):
    """Tensors without dimensions and without elements work."""
    truth = {**TRUTHS, **EXACT}[op]
    for dtype in (dtypes.f64, dtypes.f16):
        x = draw(shape, dtype, 2)
        close(op, np.asarray(quietly(truth, x)), run(op, Tensor.from_numpy(x)))


@every_function
@pytest.mark.parametrize("dtype", HAVE_INF, ids=repr)
def test_ieee(run, same, nearest, op, dtype):
    """
    NaN, infinities and zeros come out as the formula has it.

    ``x * sigmoid(x)`` of -inf is NaN, as in torch; far from zero it is zero.
    """
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -60000.0], dtype.numpy)
    actual = run(op, Tensor.from_numpy(x))
    expected = nearest(quietly(TRUTHS[op], x), dtype)
    if op in (ops.sin, ops.cos):
        x, actual, expected = x[:5], actual[:5], expected[:5]
    assert actual.dtype == dtype.numpy
    np.testing.assert_allclose(
        actual.astype(np.float64), expected, rtol=1e-2, atol=1e-30, equal_nan=True
    )
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(actual)[zero], np.signbit(expected)[zero])


@every_exact
@every_float
def test_exact_of_any_bits(run, nearest, same, op, dtype):
    """Whole numbers, signs and magnitudes are exact for every bit pattern; NaN stays NaN."""
    x = bits(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = x.astype(np.float64)
    expected = nearest(quietly(EXACT[op], wide), dtype)
    actual = run(op, Tensor.from_numpy(x))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(actual.astype(np.float64), expected)


@every_exact
@every_integer
def test_integers(run, op, dtype):
    """Integers of every dtype are exact and wrap around at the ends of the range."""
    info = np.iinfo(dtype.numpy)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7, 200 % info.max]
    x = np.array(ends, dtype.numpy)
    expected = wrapped([WHOLE[op](int(n)) for n in ends], dtype)
    assert expected == run(op, Tensor.from_numpy(x)).tolist()
    scalar = Tensor.from_numpy(x[:1].reshape(()))
    assert expected[0] == run(op, scalar).item()


@every_float
@pytest.mark.parametrize("exponent", [2.0, 0.5, -1.5, 0.0, 3])
def test_powf(run, lay, draw, close, dtype, exponent):
    """Every float dtype to any power; a negative number to a fraction is NaN."""
    x = lay(draw((5, 9), dtype, 1, 2.0), "permuted")
    truth = quietly(lambda v: np.power(v, float(exponent)), x.numpy())
    close(ops.powf, truth, run(ops.powf, x, exponent))
    negative = Tensor.from_numpy(np.array([-2.0, 0.0], dtype.numpy))
    assert np.isnan(run(ops.powf, negative, 0.5)[0]) == (exponent is not None)


@every_float
@pytest.mark.parametrize("alpha", [1.0, 0.25, -2.0])
def test_elu(run, draw, close, dtype, alpha):
    """Below zero an exponential, above zero the number itself."""
    x = draw((5, 9), dtype, 1, 2.0)
    truth = quietly(lambda v: np.where(v > 0, v, alpha * np.expm1(np.minimum(v, 0))), x)
    close(ops.elu, truth, run(ops.elu, Tensor.from_numpy(x), alpha))
    close(ops.elu, truth, run(ops.elu, Tensor.from_numpy(x), alpha=alpha))


@pytest.mark.parametrize("dtype", HAVE_INF, ids=repr)
def test_elu_at_the_ends(run, same, dtype):
    """Infinities and NaN follow the definition, and zero stays zero."""
    x = np.array([np.inf, -np.inf, np.nan, 0.0], dtype.numpy)
    same([np.inf, -1.0, np.nan, 0.0], run(ops.elu, Tensor.from_numpy(x)))


@every_float
def test_clamp(run, lay, draw, nearest, same, how, dtype):
    """Numbers beyond the bounds become the bounds; NaN stays NaN; infinite bounds bind none."""
    array = draw((3, 4, 5), dtype, 1, 3.0)
    array[0, 0, 0] = np.nan
    x = lay(array, how)
    for low, high in ((-1.5, 0.5), (-np.inf, 2.0), (1.0, 1.0), (-np.inf, np.inf)):
        expected = np.clip(x.numpy().astype(np.float64), low, high)
        same(nearest(expected, dtype), run(ops.clamp, x, low, high))


@every_integer
def test_clamp_of_integers(run, dtype):
    """Bounds of integers are truncated and saturated, infinite ones too."""
    info = np.iinfo(dtype.numpy)
    x = np.array([info.min, info.max, 0, 1, 2, 3, 4], dtype.numpy)
    for low, high in ((1, 3), (1.9, 3.9), (-math.inf, 2), (2, math.inf), (-(2.0**70), 2.0**70)):
        bottom, top = saturated(low, dtype), saturated(high, dtype)
        expected = [min(max(int(n), bottom), top) for n in x]
        assert expected == run(ops.clamp, Tensor.from_numpy(x), low, high).tolist()
    exact = int(info.max) - 1
    assert exact == run(ops.clamp, Tensor.from_numpy(x), exact, exact)[0]


@every_float
def test_affine(run, lay, draw, close, how, dtype):
    """A product and a sum in every float dtype and layout."""
    x = lay(draw((3, 4, 5), dtype, 1), how)
    truth = x.numpy().astype(np.float64) * 1.75 - 0.5
    close(ops.affine, truth, run(ops.affine, x, 1.75, -0.5))


@every_integer
def test_affine_of_integers(run, dtype):
    """Both scalars are truncated and saturated; the result wraps around."""
    info = np.iinfo(dtype.numpy)
    x = [info.min, info.max, 0, 1, 2, 3]
    tensor = Tensor.from_numpy(np.array(x, dtype.numpy))
    for mul, add in ((2, 1), (3.9, -2.9), (1e30, 0), (-1, 2), (info.max, info.max)):
        by, plus = saturated(mul, dtype), saturated(add, dtype)
        expected = wrapped([int(n) * by + plus for n in x], dtype)
        assert expected == run(ops.affine, tensor, mul, add).tolist()


def test_scalars_that_are_not_finite(run, same):
    """Infinite and NaN scalars act as IEEE says on floats, and saturate on integers."""
    x = Tensor.from_numpy(np.array([1.0, 0.0, -2.0], np.float32))
    same([np.inf, np.nan, -np.inf], run(ops.affine, x, math.inf, 0.0))
    same([np.nan] * 3, run(ops.affine, x, 1.0, math.nan))
    whole = Tensor.from_numpy(np.array([1, 2], np.int16))
    assert [0, 0] == run(ops.affine, whole, math.nan, 0).tolist()
    assert [32767, -32768 + 32766] == run(ops.affine, whole, math.inf, 0).tolist()


@every_float
def test_gelu_mul(run, lay, draw, close, how, dtype):
    """gelu(gate) * up in every float dtype and layout."""
    gate, up = lay(draw((3, 4, 5), dtype, 1, 3.0), how), lay(draw((3, 4, 5), dtype, 2), how)
    truth = quietly(TRUTHS[ops.gelu], gate.numpy()) * up.numpy().astype(np.float64)
    close(ops.gelu_mul, truth, run(ops.gelu_mul, gate, up))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 129)])
def test_gelu_mul_shapes(run, draw, close, shape):
    """Tensors without dimensions and without elements work; other shapes are an error."""
    gate, up = draw(shape, dtypes.f16, 1), draw(shape, dtypes.f16, 2)
    truth = np.asarray(quietly(TRUTHS[ops.gelu], gate) * up.astype(np.float64))
    close(ops.gelu_mul, truth, run(ops.gelu_mul, *map(Tensor.from_numpy, (gate, up))))
    with pytest.raises(ShapeError, match=r"gelu_mul: gate and up must agree; got gate"):
        ops.gelu_mul(Tensor.from_numpy(gate), Tensor.from_numpy(np.ones((5, 5), np.float16)))


def test_errors():
    """Integers where floats are meant, block formats, and bounds in the wrong order are errors."""
    whole = Tensor.from_numpy(np.ones(3, np.int16))
    for op in (*TRUTHS,):
        with pytest.raises(DTypeError, match=rf"{op.name}: x is i16; supported: f64, .*ops.cast"):
            op(whole)
    for call in (lambda: ops.powf(whole, 2.0), lambda: ops.elu(whole)):
        with pytest.raises(DTypeError, match="x is i16; supported: f64"):
            call()
    blocks = Tensor.from_blocks(np.zeros(34, np.uint8), dtypes.q8_0, (1, 32))
    for op in EXACT:
        with pytest.raises(DTypeError, match=rf"{op.name}: x is q8_0; supported: f64, .*i64"):
            op(blocks)
    for low, high in ((2, 1), (math.nan, 1), (0, math.nan)):
        with pytest.raises(OpError, match=rf"clamp: low {low} must not be above high {high}"):
            ops.clamp(whole, low, high)
