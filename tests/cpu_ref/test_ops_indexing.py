"""embedding against rows picked one by one, and gguf's values for block formats."""

from __future__ import annotations

import gguf
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
# gguf has no code for the others; tests of dequantize have a loop for them.
BLOCKS = [d for d in dtypes.ALL if d.is_block and d not in (dtypes.q8_1, dtypes.q8_k)]
INDICES = [np.uint8, np.uint32, np.int16, np.int32, np.int64]

every_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=repr)
every_index = pytest.mark.parametrize("index", INDICES)


def pick(ids, table):
    """``table[ids]``, id by id."""
    result = np.empty((*ids.shape, table.shape[1]), table.dtype)
    for place in np.ndindex(ids.shape):
        result[place] = table[int(ids[place])]
    return result


@every_dtype
@every_index
def test_rows(run, draw, dtype, index):
    """Each id gives its row, bit for bit, from a table of any plain dtype."""
    table = draw((6, 5), dtype)
    ids = np.array([[0, 5, 5], [3, 1, 0]], index)
    actual = run(ops.embedding, Tensor.from_numpy(ids), Tensor.from_numpy(table))
    assert pick(ids, table).tobytes() == actual.tobytes()


@every_dtype
def test_layouts(run, lay, draw, how, dtype):
    """Ids and table may lie anywhere."""
    table = lay(draw((6, 5), dtype), how)
    ids = lay(np.array([[0, 5], [3, 1], [2, 2]], np.int32), how)
    actual = run(ops.embedding, ids, table)
    assert pick(ids.numpy(), table.numpy()).tobytes() == actual.tobytes()


@every_index
@pytest.mark.parametrize(
    ("shape", "rows", "width"),
    [((), 3, 4), ((1,), 1, 1), ((0,), 3, 4), ((2, 0), 0, 4), ((2, 3), 3, 0), ((2, 1, 3), 2, 129)],
)
def test_shapes(run, draw, index, shape, rows, width):
    """A scalar id gives a row; no ids, or rows of no width, give nothing."""
    table = draw((rows, width), dtypes.f32)
    ids = np.empty(shape, index)
    ids[...] = np.arange(ids.size).reshape(shape) % max(rows, 1)
    actual = run(ops.embedding, Tensor.from_numpy(ids), Tensor.from_numpy(table))
    assert (*shape, width) == actual.shape
    np.testing.assert_array_equal(pick(ids, table), actual)


@pytest.mark.parametrize("target", FLOATS, ids=repr)
@pytest.mark.parametrize("source", FLOATS, ids=repr)
def test_other_float_dtypes(run, draw, nearest, same, source, target):
    """Rows are rounded once to another float dtype; NaN and infinities stay what they are."""
    table = np.concatenate([draw((4, 5), source), draw((4, 5), source, 1, 100.0)])
    table[0, :2] = [np.nan, np.inf]
    ids = np.array([7, 0, 4], np.int64)
    expected = nearest(pick(ids, table).astype(np.float64), target)
    same(expected, run(ops.embedding, Tensor.from_numpy(ids), Tensor.from_numpy(table), target))


def test_double_rounding(run, same):
    """Doubles are rounded to bf16 once, not by way of f32."""
    table = Tensor.from_numpy(np.array([[1 + 2.0**-8 + 2.0**-40, 1e-50]]))
    ids = Tensor.from_numpy(np.zeros(1, np.int32))
    same([[1 + 2.0**-7, 0.0]], run(ops.embedding, ids, table, dtype=dtypes.bf16))


@pytest.mark.parametrize("target", [None, *FLOATS], ids=repr)
@pytest.mark.parametrize("block", BLOCKS, ids=repr)
def test_block_formats(run, nearest, same, block, target):
    """Rows of blocks are dequantised to gguf's values and rounded once, to f32 when not told."""
    width = 2 * block.block_size
    rng = np.random.default_rng(block.ggml_type)
    raw = rng.integers(0, 256, (9, block.nbytes(width)), np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(block.ggml_type))
    ids = np.array([[8, 0], [3, 3]], np.uint32)
    table = Tensor.from_blocks(raw.reshape(-1), block, (9, width))
    actual = run(ops.embedding, Tensor.from_numpy(ids), table, target)
    dtype = target or dtypes.f32
    assert dtype.numpy == actual.dtype
    same(nearest(pick(ids, values).astype(np.float64), dtype), actual)


def test_views_of_block_tables(run):
    """A table may be some rows of a larger one, and there may be no ids."""
    raw = np.random.default_rng(2).integers(0, 100, 8 * 34, np.uint8)
    table = Tensor.from_blocks(raw, dtypes.q8_0, (8, 32))
    ids = np.array([0, 2], np.int32)
    whole = run(ops.embedding, Tensor.from_numpy(ids + 5), table)
    part = run(ops.embedding, Tensor.from_numpy(ids), table.narrow(0, 5, 3))
    np.testing.assert_array_equal(whole, part)
    assert (0, 32) == run(ops.embedding, Tensor.from_numpy(ids[:0]), table).shape


@pytest.mark.parametrize("table", ["f32", "q8_0"])
@pytest.mark.parametrize(
    ("wrong", "index"),
    [(-1, np.int32), (4, np.int32), (4, np.uint32), (2**32 - 2, np.uint32), (-(2**63), np.int64)],
)
def test_ids_outside_the_table(table, wrong, index):
    """An id outside is an error that names it, and nothing is written."""
    rows = {
        "f32": Tensor.from_numpy(np.ones((4, 32), np.float32)),
        "q8_0": Tensor.from_blocks(np.ones(4 * 34, np.uint8), dtypes.q8_0, (4, 32)),
    }[table]
    ids = Tensor.from_numpy(np.array([0, wrong, 3], index))
    out = Tensor.from_numpy(np.full((3, 32), 7, np.float32))
    message = rf"embedding: id {wrong} is outside the table, which has 4 rows \(0 to 3\)"
    with pytest.raises(OpError, match=message):
        ops.embedding.into(out, ids, rows)
    assert (out.numpy() == 7).all()


def test_a_table_of_no_rows():
    """No id is inside, and the error says that rather than a range."""
    table, ids = (Tensor.from_numpy(a) for a in (np.ones((0, 3), "f"), np.array([0])))
    with pytest.raises(OpError, match=r"id 0 is outside the table, which has no rows$"):
        ops.embedding(ids, table)


def test_other_errors():
    """Ids that are no integers, tables of other rank, and casts to integers are errors."""
    ids = Tensor.from_numpy(np.zeros(2, np.int32))
    table = Tensor.from_numpy(np.ones((4, 3), np.float32))
    whole = Tensor.from_numpy(np.ones((4, 3), np.int16))
    with pytest.raises(ShapeError, match=r"embedding: table is \(rows, width\); got table \(3,\)"):
        ops.embedding(ids, Tensor.from_numpy(np.ones(3, np.float32)))
    with pytest.raises(
        DTypeError, match=r"embedding: ids is f32; supported: u8, u32, i16, i32, i64"
    ):
        ops.embedding(table, table)
    with pytest.raises(DTypeError, match=r"embedding: dtype i32 from a table of f32; supported: f"):
        ops.embedding(ids, table, dtypes.i32)
    with pytest.raises(DTypeError, match=r"embedding: dtype f32 from a table of i16; supported: f"):
        ops.embedding(ids, whole, dtypes.f32)
