"""dequantize and qmatmul against gguf's values, and scalar loops for what gguf lacks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import ShapeError
from propolis.opspec.spec import DEFAULT_TOLERANCE
from propolis_cpu_ref import ops_quantized


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
BLOCKS = [d for d in dtypes.ALL if d.is_block]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
every_block = pytest.mark.parametrize("block", BLOCKS, ids=repr)


def any_blocks(block, rows, blocks, seed=0):
    """Rows of any bytes: some scales are infinite or NaN."""
    rng = np.random.default_rng([seed, block.ggml_type])
    return rng.integers(0, 256, (rows, blocks * block.block_bytes), np.uint8)


def tame_blocks(block, rows, blocks, seed=0):
    """Rows of any quants with scales around one."""
    raw = any_blocks(block, rows, blocks, seed).reshape(-1, block.block_bytes)
    rng = np.random.default_rng(seed)
    if block is dtypes.q8_k:
        raw[:, :4] = rng.uniform(-0.1, 0.1, len(raw)).astype("<f4").view(np.uint8).reshape(-1, 4)
        return raw.reshape(rows, -1)
    if block is dtypes.mxfp4:
        raw[:, 0] = rng.integers(118, 124, len(raw))
        return raw.reshape(rows, -1)
    # Where the halves are: at the start of a block, or at its end.
    ends = {dtypes.q2_k: (80, 84), dtypes.q3_k: (108, 110), dtypes.q6_k: (208, 210)}
    ends |= {dtypes.tq1_0: (52, 54), dtypes.tq2_0: (64, 66)}
    starts = dict.fromkeys((dtypes.q4_0, dtypes.q5_0, dtypes.q8_0, dtypes.iq4_nl, dtypes.iq4_xs), 2)
    first, last = ends.get(block, (0, starts.get(block, 4)))
    halves = rng.uniform(-0.1, 0.1, (len(raw), (last - first) // 2)).astype("<f2")
    raw[:, first:last] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


def values_of(raw, block):
    """The f32 values of rows of blocks, by gguf or by the definition of q8_1 and q8_k."""
    if raw.size == 0:
        return np.empty((len(raw), 0), np.float32)
    with np.errstate(all="ignore"):
        if block not in (dtypes.q8_1, dtypes.q8_k):
            return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(block.ggml_type))
        parts = raw.reshape(-1, block.block_bytes)
        width = {dtypes.q8_1: 2, dtypes.q8_k: 4}[block]
        scale = np.ascontiguousarray(parts[:, :width]).view(f"<f{width}").astype(np.float32)
        quants = np.ascontiguousarray(parts[:, 4 : 4 + block.block_size]).view(np.int8)
        return (scale * quants.astype(np.float32)).reshape(len(raw), -1)


def tensor_of(raw, block):
    """Rows of blocks as a tensor."""
    width = raw.shape[1] // block.block_bytes * block.block_size
    return Tensor.from_blocks(raw.reshape(-1), block, (len(raw), width))


def prepared(x, w, cpu):
    """The weight as a worker has it after loading."""
    weight = cpu.table.prepare(ops.qmatmul, ops.qmatmul.key(x.dtype, w.dtype), w)
    assert set(weight.prepared) == {ops_quantized.prepare}
    return weight


@every_block
@every_float
def test_dequantize(run, nearest, same, block, dtype):
    """Any blocks give gguf's f32 values, rounded once to the wanted dtype."""
    raw = any_blocks(block, 6, 3)
    actual = run(ops.dequantize, tensor_of(raw, block), dtype)
    assert dtype.numpy == actual.dtype
    same(nearest(values_of(raw, block).astype(np.float64), dtype), actual)


@every_block
def test_dequantize_shapes_and_views(run, same, block):
    """Tensors of any rank, without elements, and views that keep blocks whole work."""
    raw = any_blocks(block, 6, 2)
    values = values_of(raw, block).reshape(2, 3, -1).astype(np.float64)
    x = tensor_of(raw, block)
    cube = x.reshape(*values.shape)
    same(values, run(ops.dequantize, cube))
    same(values.transpose(1, 0, 2), run(ops.dequantize, cube.permute(1, 0, 2)))
    same(values[:, 1:], run(ops.dequantize, cube.narrow(1, 1, 2)))
    same(
        values[:, :, block.block_size :],
        run(ops.dequantize, cube.narrow(2, block.block_size, block.block_size)),
    )
    same(values.reshape(-1), run(ops.dequantize, x.reshape(-1)))
    for shape in ((0, block.block_size), (3, 0), (0,)):
        empty = Tensor.from_blocks(np.empty(0, np.uint8), block, shape)
        assert shape == run(ops.dequantize, empty, dtype=dtypes.f16).shape


@every_block
@every_float
@pytest.mark.parametrize("shape", [(), (1, 1), (3,), (2, 2), (0,)])
def test_qmatmul(run, cpu, draw, close, block, dtype, shape):
    """Every format times every float dtype; a prepared weight gives the same, to tolerance."""
    raw = tame_blocks(block, 5, 2)
    w = tensor_of(raw, block)
    x = draw((*shape, w.shape[1]), dtype, 1, 0.1)
    dense = values_of(raw, block).astype(np.float64)
    truth = x.astype(np.float64) @ dense.T
    tensor = Tensor.from_numpy(x)
    # The error of a sum is relative to the magnitudes in it, not to what is left of them.
    rtol, atol = DEFAULT_TOLERANCE[dtype]
    atol += (1e-15 if dtype is dtypes.f64 else 1e-6) * float(np.abs(dense).sum(1).max())
    for weight in (w, prepared(tensor, w, cpu)):
        close(ops.qmatmul, truth, run(ops.qmatmul, tensor, weight), (rtol, atol))


@every_block
@pytest.mark.parametrize("elements", [1, 600, 1024])
def test_rows_in_parts(run, draw, close, monkeypatch, block, elements):
    """A weight that is dequantised some rows at a time loses none where a part ends."""
    monkeypatch.setattr(ops_quantized, "CHUNK_ELEMENTS", elements)
    raw = tame_blocks(block, 7, 1)
    w = tensor_of(raw, block)
    x = draw((3, w.shape[1]), dtypes.f64)
    truth = x @ values_of(raw, block).astype(np.float64).T
    close(ops.qmatmul, truth, run(ops.qmatmul, Tensor.from_numpy(x), w))


@pytest.mark.parametrize("how", ["permuted", "repeated", "offset", "step", "gaps"])
@pytest.mark.parametrize("packed", [False, True])
def test_qmatmul_layouts(run, cpu, lay, draw, close, how, packed):
    """Activations may lie anywhere; weights may be rows of a larger tensor, turned or not."""
    raw = tame_blocks(dtypes.q4_1, 6, 2)
    x = lay(draw((2, 5, 64), dtypes.f64), how)
    dense = values_of(raw, dtypes.q4_1).astype(np.float64)
    part = tensor_of(raw, dtypes.q4_1).narrow(0, 1, 4)
    half = tensor_of(raw, dtypes.q4_1).unflatten(1, 32).permute(1, 0, 2).narrow(0, 1, 1).squeeze(0)
    for w, values, given in ((part, dense[1:5], x), (half, dense[:, 32:], x.narrow(2, 0, 32))):
        weight = prepared(given, w, cpu) if packed else w
        truth = given.numpy() @ values.T
        close(ops.qmatmul, truth, run(ops.qmatmul, given, weight))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16], ids=repr)
def test_qmatmul_of_nothing(run, cpu, packed, dtype):
    """No output features give no elements, no input features give zeros."""
    for out, width, shape in ((0, 32, (3, 32)), (0, 32, (32,)), (4, 0, (3, 0)), (0, 0, (2, 0))):
        w = Tensor.from_blocks(np.empty(0, np.uint8), dtypes.q8_0, (out, width))
        x = Tensor.from_numpy(np.ones(shape, dtype.numpy))
        actual = run(ops.qmatmul, x, prepared(x, w, cpu) if packed else w)
        assert (*shape[:-1], out) == actual.shape
        assert not actual.any()


@pytest.mark.parametrize("packed", [False, True])
def test_ieee(run, cpu, same, packed):
    """An infinite scale gives infinities, and NaN where it meets a zero."""
    raw = np.zeros((2, 34), np.uint8)
    raw[:, 2:] = 1
    raw[0, :2] = np.array([np.inf], "<f2").view(np.uint8)
    raw[1, :2] = np.array([1.0], "<f2").view(np.uint8)
    w = tensor_of(raw, dtypes.q8_0)
    x = np.ones((3, 32), np.float32)
    x[1, 5], x[2, 5] = 0, np.nan
    tensor = Tensor.from_numpy(x)
    weight = prepared(tensor, w, cpu) if packed else w
    expected = [[np.inf, 32], [np.nan, 31], [np.nan, np.nan]]
    same(expected, run(ops.qmatmul, tensor, weight))


def test_prepared_weights_say_what_they_cost():
    """What is made of a weight is described for the placement summary."""
    w = tensor_of(tame_blocks(dtypes.q4_0, 3, 1), dtypes.q4_0)
    made = ops_quantized.prepare(w)
    assert (3 * 32 * 4, "dequantised once to f32") == (made.nbytes, made.what)
    np.testing.assert_array_equal(ops.dequantize(w).numpy(), made.payload)


def test_dequantize_errors():
    """Plain inputs and integer outputs are errors that list what is supported."""
    w = tensor_of(tame_blocks(dtypes.q4_0, 3, 1), dtypes.q4_0)
    with pytest.raises(DTypeError, match=r"dequantize: to i32; supported: float dtypes"):
        ops.dequantize(w, dtypes.i32)
    with pytest.raises(DTypeError, match=r"dequantize: to q4_0; supported: float dtypes"):
        ops.dequantize(w, dtypes.q4_0)
    with pytest.raises(DTypeError, match=r"dequantize: x is f32; supported: q4_0, q4_1, .*q8_k"):
        ops.dequantize(Tensor.from_numpy(np.ones(32, np.float32)))


def test_qmatmul_errors():
    """Sizes that do not fit, plain weights and integer activations are errors."""
    w = tensor_of(tame_blocks(dtypes.q4_0, 3, 1), dtypes.q4_0)
    x = Tensor.from_numpy(np.ones((2, 32), np.float32))
    rule = r"qmatmul: x is \(\.\.\., in\), w is \(out, in\); got x "
    with pytest.raises(ShapeError, match=rule + r"\(2, 33\), w \(3, 32\)"):
        ops.qmatmul(Tensor.from_numpy(np.ones((2, 33), np.float32)), w)
    with pytest.raises(ShapeError, match=rule):
        ops.qmatmul(Tensor.from_numpy(np.array(1.0)), w)
    with pytest.raises(ShapeError, match=rule):
        ops.qmatmul(x, w.reshape(96))
    with pytest.raises(DTypeError, match=r"qmatmul: w is f32; supported: q4_0, .*q8_k"):
        ops.qmatmul(x, Tensor.from_numpy(np.ones((3, 32), np.float32)))
    with pytest.raises(DTypeError, match=r"qmatmul: x is u8; supported: f64, f32, f16, bf16, f8"):
        ops.qmatmul(Tensor.from_numpy(np.ones((2, 32), np.uint8)), w)
