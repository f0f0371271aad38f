"""
cast, for all pairs of dtypes, against exact arithmetic.

The oracle knows only Python's integers and fractions: it rounds a fraction once, so
that a cast which rounds twice on the way is found out.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
INTEGERS = [d for d in PLAIN if d.is_integer]

# Bits of precision, exponent of the least normal number, largest finite number.
FORMATS = {
    dtypes.f64: (53, -1022, (2**53 - 1) * 2**971),
    dtypes.f32: (24, -126, (2**24 - 1) * 2**104),
    dtypes.f16: (11, -14, 65504),
    dtypes.bf16: (8, -126, 255 * 2**120),
    dtypes.f8e4m3: (4, -6, 448),
    dtypes.f8e5m2: (3, -14, 57344),
}

every_target = pytest.mark.parametrize("target", PLAIN, ids=repr)


def power(exponent):
    """Two to any power, exactly."""
    return Fraction(2) ** exponent


def round_once(value, precision, least):
    """A fraction to the nearest number of a binary format without an end, ties to even."""
    if value == 0:
        return Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < power(exponent)
    quantum = power(max(exponent, least) - (precision - 1))
    return round(value / quantum) * quantum


def exact(value, source, target):
    """What ``value``, a Python number that ``source`` holds, is in ``target``."""
    if target.is_integer:
        info = np.iinfo(target.numpy)
        if source.is_integer:
            span = 2 ** (8 * target.block_bytes)
            wrapped = value % span
            return wrapped - span if wrapped > info.max else wrapped
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return int(info.max) if value > 0 else int(info.min)
        return max(int(info.min), min(int(info.max), math.trunc(value)))
    too_large = math.nan if target is dtypes.f8e4m3 else math.inf
    if source.is_float and (value == 0 or not math.isfinite(value)):
        return math.nan if math.isinf(value) and target is dtypes.f8e4m3 else value
    precision, least, largest = FORMATS[target]
    rounded = round_once(Fraction(value), precision, least)
    if abs(rounded) > largest:
        return math.copysign(too_large, value)
    return math.copysign(float(rounded), value)


def ties(dtype, rng):
    """Numbers around the middles between neighbours of a float dtype, as f64."""
    precision, least, largest = FORMATS[dtype]
    top = math.frexp(largest)[1] - 1
    found = [Fraction(largest), Fraction(largest) + power(top - precision)]
    for exponent in (*range(least - precision - 1, least + 3), *range(-9, 10), 16, 40, 62, top):
        digits = int(rng.integers(2 ** (precision - 1), 2**precision))
        quantum = power(max(exponent, least) - (precision - 1))
        found += [(n + Fraction(1, 2)) * quantum for n in (digits, digits + 1)]
    for middle in list(found):
        found += [middle * (1 + power(-40)), middle * (1 - power(-40)), middle - 1, middle + 1]
    found += [power(least - precision) * f for f in (1, Fraction(1, 3), Fraction(5, 4), power(-60))]
    for value in found:
        if abs(value) < power(1023):
            yield float(value)
            yield -float(value)


def samples(source):
    """Numbers of a dtype that are hard to convert, as an array of it."""
    rng = np.random.default_rng(7)
    if source.is_float:
        values = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e-50, -1e-50, 1e300, -1e300]
        for end in (7, 8, 15, 16, 31, 32, 63, 64):
            for delta in (-1.0, -0.5, 0.0, 0.5, 1.0):
                values += [2.0**end + delta, -(2.0**end) + delta]
            values += [math.nextafter(2.0**end, 0), -math.nextafter(2.0**end, math.inf)]
        values += [0.5, -0.5, 0.999, -0.999, 1.5, -1.5, 2.5]
        for dtype in FLOATS:
            values += ties(dtype, rng)
        with np.errstate(all="ignore"):
            return np.array(values).astype(source.numpy)
    info = np.iinfo(source.numpy)
    whole = {0, int(info.min), int(info.max), int(info.min) + 1, int(info.max) - 1}
    for exponent in range(64):
        for digits in (1, 3, 257, 259, 2049, 2**24 + 1, 2**24 + 3, 2**53 + 1, 17, 19, 29, 1023):
            for delta in (-1, 0, 1):
                whole |= {digits * 2**exponent + delta, -digits * 2**exponent + delta}
    return np.array(sorted(n for n in whole if info.min <= n <= info.max), source.numpy)


def numbers(array):
    """The elements as Python numbers, exactly."""
    if array.dtype.kind in "iu":
        return [int(n) for n in array]
    return [float(n) for n in array.astype(np.float64)]


def assert_exact(array, actual, source, target):
    """Whether each element became what the oracle says, zeros' signs included."""
    expected = [exact(value, source, target) for value in numbers(array)]
    for value, wanted, got in zip(numbers(array), expected, numbers(actual), strict=True):
        agree = (wanted == got) or (wanted != wanted and got != got)  # noqa: PLR0124  (NaN)
        agree &= wanted != 0 or math.copysign(1, wanted) == math.copysign(1, got)
        assert agree, f"{source} {value!r} to {target}: expected {wanted!r}, got {got!r}"


@every_target
@pytest.mark.parametrize("source", PLAIN, ids=repr)
def test_every_pair(run, source, target):
    """Each pair gives, for hard numbers, what exact arithmetic gives."""
    array = samples(source)
    actual = run(ops.cast, Tensor.from_numpy(array), target)
    assert actual.dtype == target.numpy
    assert_exact(array, actual, source, target)


@every_target
@pytest.mark.parametrize("source", [d for d in FLOATS if d.block_bytes < 4], ids=repr)
def test_every_bit_pattern(run, nearest, same, source, target):
    """All numbers of the narrow floats, denormal, infinite and NaN, convert exactly."""
    bits = np.arange(2 ** (8 * source.block_bytes), dtype=f"u{source.block_bytes}")
    array = bits.view(source.numpy)
    actual = run(ops.cast, Tensor.from_numpy(array), target)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = array.astype(np.float64)
    if target.is_float:
        same(nearest(values, target), actual)
        return
    info = np.iinfo(target.numpy)
    low, high = float(info.min), float(info.max)
    whole = np.clip(np.trunc(np.nan_to_num(values, nan=0.0)), low, high)
    expected = [min(int(n), int(info.max)) for n in whole]
    assert expected == [int(n) for n in actual]


@pytest.mark.parametrize("target", [dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2], ids=repr)
@given(values=st.lists(st.floats(width=64), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_double_to_narrow_floats(run, target, values):
    """Doubles are rounded once to bf16 and f8, however f32 would round them first."""
    array = np.array(values)
    actual = run(ops.cast, Tensor.from_numpy(array), target)
    assert_exact(array, actual, dtypes.f64, target)


@pytest.mark.parametrize("target", FLOATS[1:], ids=repr)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_i64_to_floats(run, target, values):
    """64-bit integers are rounded once."""
    array = np.array(values, np.int64)
    actual = run(ops.cast, Tensor.from_numpy(array), target)
    assert_exact(array, actual, dtypes.i64, target)


def test_double_rounding_trap(run):
    """A double just above the middle of two bf16 goes up, though f32 puts it on the middle."""
    middle = 1 + 2.0**-8
    array = np.array([middle + 2.0**-40, middle, middle - 2.0**-40, -(middle + 2.0**-40)])
    actual = run(ops.cast, Tensor.from_numpy(array), dtypes.bf16)
    assert [1 + 2.0**-7, 1.0, 1.0, -(1 + 2.0**-7)] == actual.astype(np.float64).tolist()


@pytest.mark.parametrize("target", [dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2], ids=repr)
def test_doubles_that_vanish(run, same, target):
    """Doubles too small for f32 become zeros of their sign."""
    array = np.array([1e-50, -1e-50, 5e-324, -5e-324])
    same([0.0, -0.0, 0.0, -0.0], run(ops.cast, Tensor.from_numpy(array), target))


def test_f8_overflow(run, same):
    """f8e4m3 has no infinity: what rounds to 448 is 448, all beyond is NaN."""
    values = np.array([448.0, 464.0, math.nextafter(464.0, 500), -464.0, -465.0, 1e9, math.inf])
    expected = [448.0, 448.0, math.nan, -448.0, math.nan, math.nan, math.nan]
    same(expected, run(ops.cast, Tensor.from_numpy(values), dtypes.f8e4m3))
    whole = np.array([448, 464, 465, -465, 2**62])
    same(
        [448, 448, math.nan, math.nan, math.nan],
        run(ops.cast, Tensor.from_numpy(whole), dtypes.f8e4m3),
    )


def test_f8e5m2_overflow(run, same):
    """f8e5m2 has infinities: what rounds to 57344 is 57344, all beyond, a tie too, infinite."""
    values = np.array([57344.0, math.nextafter(61440.0, 0), 61440.0, -61440.0, math.inf, math.nan])
    expected = [57344.0, 57344.0, math.inf, -math.inf, math.inf, math.nan]
    same(expected, run(ops.cast, Tensor.from_numpy(values), dtypes.f8e5m2))


@pytest.mark.parametrize("target", INTEGERS, ids=repr)
@pytest.mark.parametrize("source", FLOATS, ids=repr)
def test_saturation(run, source, target):
    """Infinities become the ends of the range, NaN becomes 0."""
    array = np.array([math.inf, -math.inf, math.nan]).astype(source.numpy)
    info = np.iinfo(target.numpy)
    expected = [int(info.max), int(info.min), 0]
    if source is dtypes.f8e4m3:
        expected = [0, 0, 0]  # its infinities are NaN already
    assert expected == run(ops.cast, Tensor.from_numpy(array), target).tolist()


@every_target
@pytest.mark.parametrize("source", PLAIN, ids=repr)
def test_empty_and_scalar(run, source, target):
    """Tensors without elements and without dimensions keep their shape."""
    for shape in ((0,), (3, 0, 2), (), (1, 1)):
        ones = Tensor.from_numpy(np.ones(shape, source.numpy))
        actual = run(ops.cast, ones, target)
        assert shape == actual.shape
        assert (actual.astype(np.float64) == 1).all()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("f64", "bf16"),
        ("f32", "i32"),
        ("i64", "f8e4m3"),
        ("bf16", "f16"),
        ("u8", "f64"),
        ("f8e5m2", "i8"),
    ],
)
def test_layouts(run, lay, how, source, target):
    """Elements convert the same wherever they lie."""
    source, target = dtypes.parse_dtype(source), dtypes.parse_dtype(target)
    array = np.resize(samples(source), (3, 5, 7))
    x = lay(array, how)
    actual = run(ops.cast, x, target)
    assert_exact(x.numpy().reshape(-1), actual.reshape(-1), source, target)


@pytest.mark.parametrize("block", [dtypes.q4_0, dtypes.q8_k], ids=repr)
def test_block_formats_are_refused(block):
    """Neither from nor to a block format; the message says what there is instead."""
    x = Tensor.from_numpy(np.ones(256, np.float32))
    with pytest.raises(DTypeError, match=rf"cast: to {block}; supported: plain dtypes"):
        ops.cast(x, block)
    blocks = Tensor.from_blocks(np.zeros(block.nbytes(256), np.uint8), block, (256,))
    with pytest.raises(DTypeError, match=rf"cast: x is {block}; supported: f64, f32, .*i64"):
        ops.cast(blocks, dtypes.f32)


def test_wrong_out_is_refused():
    """An out of another dtype or shape than the result is an error that names both."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    for wrong in (np.ones((2, 3), np.float16), np.ones((3, 2), np.int32)):
        with pytest.raises(OpError, match=r"cast: the result is i32 of shape \(2, 3\), out is"):
            ops.cast.into(Tensor.from_numpy(wrong), x, dtypes.i32)
