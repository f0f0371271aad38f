"""Where weights lie that the kernels have in a form of their own."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

from propolis.errors import OutOfMemoryError
from propolis_cpu_native import _native


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
