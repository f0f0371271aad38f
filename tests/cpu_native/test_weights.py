"""Where weights lie that the kernels have in a form of their own."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError
from propolis_cpu_native import _native
from propolis_cpu_native.ops_quantized import FORMATS


def test_weights_lie_side_by_side():
    """They begin at multiples of 64, in pieces that may have large pages, and overlap nowhere."""
    pieces = _native._Pieces()
    sizes = [1, 63, 64, 65, 1 << 20, 0, 5, pieces.SIZE - 1, pieces.SIZE, pieces.SIZE + 3, 7]
    taken = [pieces.take(size) for size in sizes]
    assert [memory.size for memory in taken] == sizes
    assert all(memory.ctypes.data % 64 == 0 for memory in taken if memory.size)
    spans = sorted((m.ctypes.data, m.ctypes.data + m.size) for m in taken if m.size)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for number, memory in enumerate(taken):
        memory[:] = number
    assert all((memory == number).all() for number, memory in enumerate(taken))
    assert taken[0].base is taken[1].base is taken[4].base


def test_memory_that_there_is_not():
    """It is an error of memory, and no bug: commands end with its code, and say how much."""
    with pytest.raises(OutOfMemoryError, match=f"{1 << 60} bytes are more than the free"):
        _native.lasting(1 << 60)


@pytest.mark.slow
def test_a_piece_goes_with_its_weights():
    """What nobody holds a part of is given back."""
    pieces = _native._Pieces()
    first = pieces.take(1000)
    piece = weakref.ref(first.base)
    pieces.take(pieces.SIZE - 1)  # the next piece
    gc.collect()
    assert piece() is not None
    assert isinstance(first, np.ndarray)
    del first
    gc.collect()
    assert piece() is None


@pytest.mark.parametrize("dtype", sorted(FORMATS, key=str), ids=str)
def test_rows_of_a_repacked_table(runtime, dtype):
    """They are those of the table as it was, and what is let go of comes back for the reference."""
    cpu = runtime().cpu
    numbers = np.random.default_rng(0).normal(0, 1, (37, 512)).astype(np.float32)
    table = ops.quantize(Tensor.from_numpy(numbers, cpu), dtype)
    ids = Tensor.from_numpy(np.array([[0, 36, 16, 15, 36], [1, 2**63 - 1, 31, 32, 7]]), cpu)
    kinds = (None, dtypes.f16)
    expected = [ops.embedding(ids, table, kind).numpy() for kind in kinds]
    assert not expected[0][1, 1].any()
    dispatch = DispatchTable.of(cpu)
    ready = dispatch.prepare(ops.qmatmul, ops.qmatmul.key(dtypes.f32, dtype), table)
    assert dispatch.prepare(ops.embedding, ops.embedding.key(dtypes.i64, dtype), ready) is ready
    (tiles,) = ready.prepared.values()
    for kind, rows in zip(kinds, expected, strict=True):
        assert (ops.embedding(ids, ready, kind).numpy() == rows).all()
    assert list(ready.prepared.values()) == [tiles]
    reference = runtime(plugins=["cpu_ref"]).cpu
    back = Tensor.from_blocks(np.array(ready.array).reshape(-1), dtype, table.shape, reference)
    there = Tensor.from_numpy(ids.numpy(), reference)
    assert (ops.embedding(there, back).numpy() == expected[0]).all()
