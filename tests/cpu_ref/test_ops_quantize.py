"""quantize against the gguf library's bytes, and against the error that a format allows."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis_cpu_ref import _quantize
from propolis_cpu_ref._blocks import LAYOUTS


BLOCKS = [d for d in dtypes.ALL if d.is_block]
FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
# Those that the gguf library writes.
BYTES = [
    dtypes.q4_0, dtypes.q4_1, dtypes.q5_0, dtypes.q5_1, dtypes.q8_0,
    dtypes.tq1_0, dtypes.tq2_0, dtypes.mxfp4,
]  # fmt: skip
every_block = pytest.mark.parametrize("block", BLOCKS, ids=repr)
every_with_bytes = pytest.mark.parametrize("block", BYTES, ids=repr)

# Largest quant, largest integer scale, and elements of a group, of the K formats.
GROUPS = {
    dtypes.q2_k: (3, 15, 16),
    dtypes.q4_k: (15, 63, 32),
    dtypes.q5_k: (31, 63, 32),
    dtypes.q3_k: (4, 32, 16),
    dtypes.q6_k: (32, 128, 16),
}


def rows(kind, block, seed=1):
    """Some rows of three blocks, of one kind of numbers."""
    shape = (8, 3 * block.block_size)
    rng = np.random.default_rng(seed)
    x = {
        "normal": lambda: rng.normal(size=shape),
        "uniform": lambda: rng.uniform(0.5, 1.5, shape),
        "negative": lambda: -rng.uniform(0, 3, shape),
        "outliers": lambda: rng.normal(size=shape) * (1 + 99 * (rng.random(shape) > 0.98)),
        "sparse": lambda: rng.normal(size=shape) * (rng.random(shape) > 0.9),
        "whole": lambda: rng.integers(-16, 16, shape),
        "tiny": lambda: rng.normal(size=shape) * 1e-7,
        "large": lambda: rng.normal(size=shape) * 1e4,
        "denormal": lambda: rng.normal(size=shape) * 1e-41,
        "equal": lambda: np.full(shape, 0.7),
        "zero": lambda: np.zeros(shape),
        "one": lambda: np.eye(*shape) * -5,
    }[kind]()
    return x.astype(np.float32)


KINDS = [
    "normal", "uniform", "negative", "outliers", "sparse", "whole", "tiny", "large",
    "denormal", "equal", "zero", "one",
]  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def quantized(x, block):
    """A tensor of blocks, and the values they stand for."""
    made = ops.quantize(Tensor.from_numpy(x), block)
    return made, ops.dequantize(made).numpy()


@every_with_bytes
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "denormal"])
def test_bytes(run, block, kind):
    """
    The blocks are byte for byte those of the gguf library.

    Save where the inverse of a scale overflows: there C says nothing, and f16 holds a
    scale of 0 anyway.
    """
    x = rows(kind, block)
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType(block.ggml_type))
    actual = run(ops.quantize, Tensor.from_numpy(x), block)
    np.testing.assert_array_equal(expected.reshape(-1), actual.reshape(-1).view(np.uint8))


@every_with_bytes
def test_bytes_of_ties(run, block):
    """Numbers half way between two quants go where the gguf library rounds them."""
    rng = np.random.default_rng(5)
    x = (rng.integers(-64, 65, (500, block.block_size)) / 4).astype(np.float32)
    x[:, 0], x[:, 1] = 16, -16
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType(block.ggml_type))
    actual = run(ops.quantize, Tensor.from_numpy(x), block)
    np.testing.assert_array_equal(expected.reshape(-1), actual.reshape(-1).view(np.uint8))


@every_with_bytes
@pytest.mark.parametrize("seed", [0, 2])
def test_bytes_of_much(block, seed):
    """In two million numbers, of which some fall on a tie once rounded, no byte differs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=((2 << 20) // block.block_size, block.block_size)).astype(np.float32)
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType(block.ggml_type))
    actual = ops.quantize(Tensor.from_numpy(x), block).numpy()
    np.testing.assert_array_equal(expected.reshape(-1), actual.reshape(-1).view(np.uint8))


def test_exponents(run):
    """
    The exponent of mxfp4 is the gguf library's at both sides of every power of two.

    It takes it of a logarithm in f32, which is rounded up to whole numbers from so many
    places below them.
    """
    powers = np.arange(3, 255, dtype=np.uint32)[:, None] << 23
    peaks = (powers + np.arange(-100, 100)).astype(np.uint32).view(np.float32).reshape(-1)
    x = np.zeros((len(peaks), 32), np.float32)
    x[:, 5] = np.where(np.arange(len(peaks)) % 2, peaks, -peaks)
    x[:, 9] = peaks * np.float32(0.3)
    with np.errstate(over="ignore"):  # the error of the farthest code may be infinite
        expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType.MXFP4)
    actual = run(ops.quantize, Tensor.from_numpy(x), dtypes.mxfp4)
    np.testing.assert_array_equal(expected.reshape(-1), actual.reshape(-1).view(np.uint8))


@pytest.mark.parametrize(("block", "size"), [(dtypes.iq4_nl, 32), (dtypes.iq4_xs, 256)], ids=repr)
@every_kind
def test_codes_of_a_table(block, size, kind):
    """
    Each element is within what the rounding of codes and scales allows.

    The table reaches from -127 to 113, with gaps of up to 24: what is as far from 0 as the
    peak, on its other side, is off by 14 steps.
    """
    x = rows(kind, block).astype(np.float64)
    _, values = quantized(x.astype(np.float32), block)
    blocks = x.reshape(-1, size // 32, 32)
    peaks = np.abs(blocks).max(axis=2, keepdims=True)
    reach = peaks.max(axis=1, keepdims=True)
    # Half a step of the integer scale, of which the largest is 32; and the f16 factor's rounding.
    scale = reach / 64 if size > 32 else 0
    bound = peaks / 127 * 14.1 + scale + reach * 2.0**-9 + 127 * 32 * 2.0**-24
    assert (np.abs(values.reshape(blocks.shape) - blocks) <= bound).all()


@pytest.mark.parametrize("block", [dtypes.q8_1, dtypes.q8_k], ids=repr)
@every_kind
def test_eight_bits(block, kind):
    """Each element is within half a step of its value, and the stored sums are of the quants."""
    x = rows(kind, block)
    made, values = quantized(x, block)
    blocks = made.numpy().reshape(-1).view(np.uint8).view(LAYOUTS[block])
    groups = x.reshape(-1, block.block_size).astype(np.float64)
    step = np.abs(groups).max(axis=1, keepdims=True) / 127
    # The f16 scale of q8_1 is off by its rounding, times up to 127 steps.
    slack = 1e-6 if block is dtypes.q8_k else 127 * 2.0**-11
    floor = 1e-43 if block is dtypes.q8_k else 128 * 2.0**-25
    error = np.abs(values.reshape(groups.shape) - groups)
    assert (error <= step * (0.5 + slack) + floor).all()
    quants = blocks["qs"].astype(np.int64)
    if block is dtypes.q8_k:
        np.testing.assert_array_equal(quants.reshape(-1, 16, 16).sum(axis=2), blocks["bsums"])
    else:
        wanted = quants.sum(axis=1) * (np.abs(groups).max(axis=1) / 127)
        wanted = np.where(np.abs(wanted) > 65519, np.copysign(np.inf, wanted), wanted)
        np.testing.assert_allclose(blocks["s"].astype(np.float64), wanted, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("block", GROUPS, ids=repr)
@every_kind
def test_k_formats(block, kind):
    """
    Each element is within what the rounding of quants, scales and mins allows.

    Half a step of its group's scale, plus half a step of the integer scale (and of the
    integer min) times the quants, plus the rounding of the f16 factors.
    """
    top, scales, size = GROUPS[block]
    x = rows(kind, block).astype(np.float64)
    _, values = quantized(x.astype(np.float32), block)
    groups = x.reshape(-1, 256 // size, size)
    symmetric = block in (dtypes.q3_k, dtypes.q6_k)
    low = 0 if symmetric else np.minimum(groups.min(axis=2), 0)
    span = (np.abs(groups).max(axis=2) if symmetric else groups.max(axis=2) - low) / top
    largest = span.max(axis=1, keepdims=True) / scales
    lowest = np.abs(low).max(axis=1, keepdims=True) / scales if not symmetric else 0
    reach = np.abs(groups).max(axis=(1, 2), keepdims=False)[:, None]
    # Symmetric formats have one quant fewer above zero than below: the far end loses a step.
    steps = 1.0 if symmetric else 0.5
    bound = steps * span + (top + 1) * largest / 2 + lowest / 2 + reach * 2.0**-9
    error = np.abs(values.reshape(groups.shape) - groups).max(axis=2)
    # Factors below f16's denormals are rounded by up to half of the least.
    assert (error <= bound + (top * scales + scales) * 2.0**-24).all()


@every_block
def test_zeros_are_exact(run, same, block):
    """Blocks of zeros are zeros."""
    made, values = quantized(np.zeros((2, 256), np.float32), block)
    assert ((2, 256), block) == (made.shape, made.dtype)
    assert not values.any()


@every_block
@every_kind
def test_again(block, kind):
    """What was quantised once loses no more than as much again the second time."""
    x = rows(kind, block)
    _, once = quantized(x, block)
    _, twice = quantized(once, block)
    first, second = (np.abs(a - b).max() for a, b in ((x, once), (once, twice)))
    if block in (dtypes.q8_0, dtypes.q8_1, dtypes.q8_k, dtypes.q4_0, dtypes.q5_0):
        largest = np.abs(x).max()
        assert second <= largest * 2.0**-9
    assert second <= first + np.abs(x).max() * 2.0**-9 + 1e-7


@every_block
def test_error_shrinks_with_bits(block):
    """The root mean square error of normal numbers is what the format's bits promise."""
    _, values = quantized(rows("normal", block), block)
    error = float(np.sqrt(np.square(values - rows("normal", block)).mean()))
    bits = {"q2": 0.40, "q3": 0.20, "q4": 0.11, "q5": 0.055, "q6": 0.035, "q8": 0.012}
    # The scale of ternary quants is the largest magnitude, as for weights that were trained so.
    bits |= {"iq": 0.11, "mx": 0.13, "tq": 0.85}
    assert error <= bits[block.name[:2]]


@every_block
@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_float_dtypes(run, lay, draw, how, block, dtype):
    """Every float dtype in every layout gives the blocks of its f32 values."""
    x = lay(draw((3, 2 * block.block_size), dtype, 1), how)
    expected = ops.quantize(Tensor.from_numpy(x.numpy().astype(np.float32)), block).numpy()
    actual = run(ops.quantize, x, block)
    np.testing.assert_array_equal(expected, actual)


@every_block
def test_shapes(run, block):
    """Any rank; no rows and no width give no blocks."""
    width = block.block_size
    for shape in ((width,), (2, 3, width), (0, width), (2, 0)):
        x = Tensor.from_numpy(np.ones(shape, np.float32))
        run(ops.quantize, x, block)
        assert (shape, block) == ((made := ops.quantize(x, block)).shape, made.dtype)


@every_block
def test_chunks(monkeypatch, block):
    """Nothing is lost where one chunk ends and the next begins."""
    x = rows("normal", block)
    expected = ops.quantize(Tensor.from_numpy(x), block).numpy().tobytes()
    for chunk in (1, 2 * block.block_size, 5 * block.block_size):
        monkeypatch.setattr(_quantize, "CHUNK", chunk)
        assert expected == ops.quantize(Tensor.from_numpy(x), block).numpy().tobytes()


@every_block
def test_what_is_not_finite(block):
    """Infinities and NaN are no error and no warning; other blocks are not touched by them."""
    x = np.ones((3, block.block_size), np.float32)
    x[0, 0], x[1, 0], x[1, 1] = np.nan, np.inf, -np.inf
    _, values = quantized(x, block)
    _, alone = quantized(x[2:], block)
    np.testing.assert_array_equal(alone, values[2:])


def test_errors():
    """Plain targets, integers and rows that are no whole blocks are errors."""
    x = Tensor.from_numpy(np.ones((2, 32), np.float32))
    with pytest.raises(DTypeError, match=r"quantize: to f16; supported: q4_0, q4_1, .*q8_k"):
        ops.quantize(x, dtypes.f16)
    with pytest.raises(DTypeError, match=r"q4_k: 32 elements do not fill whole blocks of 256"):
        ops.quantize(x, dtypes.q4_k)
    with pytest.raises(DTypeError, match=r"q8_0: 1 elements do not fill whole blocks of 32"):
        ops.quantize(Tensor.from_numpy(np.array(1.0)), dtypes.q8_0)
    with pytest.raises(DTypeError, match=r"quantize: x is i32; supported: f64"):
        ops.quantize(Tensor.from_numpy(np.ones(32, np.int32)), dtypes.q8_0)
