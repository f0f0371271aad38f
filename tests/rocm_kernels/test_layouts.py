"""Layouts as kernels take them: the arithmetic of the header, done again in Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis_rocm_kernels._constants import MAX_RANK
from propolis_rocm_kernels._layouts import collapse
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._signature import expand
from propolis_rocm_kernels._signature import packer
from propolis_rocm_kernels._signature import strided


def unpack(packed, tensors):
    """The fields of a StridedOf."""
    fields = list(struct.unpack(strided(tensors).letters, packed))
    take = lambda n: [fields.pop(0) for _ in range(n)]  # noqa: E731
    shape, magic = take(MAX_RANK), take(MAX_RANK)
    strides = [take(MAX_RANK) for _ in range(tensors)]
    shift = take(MAX_RANK)
    rank, run = take(2)
    return shape, magic, strides, shift, rank, run


def locate(packed, tensors, i):
    """``locate`` of propolis_elementwise.h."""
    shape, magic, strides, shift, rank, _ = unpack(packed, tensors)
    offsets = [0] * tensors
    for d in range(rank - 1, 0, -1):
        rest = (i * magic[d] >> 64) >> shift[d]
        index, i = i - rest * shape[d], rest
        offsets = [o + index * s[d] for o, s in zip(offsets, strides, strict=True)]
    return [o + i * s[0] for o, s in zip(offsets, strides, strict=True)]


@st.composite
def layouts(draw):
    """A shape, and strides of two tensors as views make them."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=8)))
    strides = []
    for _ in range(2):
        order = draw(st.permutations(range(len(shape))))
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        own = [0] * len(shape)
        for d in order:
            own[d] = 0 if draw(st.integers(0, 4)) == 0 else step
            step *= shape[d]
        strides.append(tuple(own))
    return shape, *strides


@pytest.mark.slow
@given(layouts())
@settings(deadline=None, max_examples=300)
def test_a_walk_visits_each_element_in_order(layout) -> None:
    """Whatever is collapsed, element i of a walk lies where element i of the views lies."""
    shape, *strides = layout
    packed, numel, _, starts = strided_of(shape, *((shape, s) for s in strides))
    walked = [
        [start + offset for start, offset in zip(begin, locate(packed, 2, i), strict=True)]
        for begin in starts
        for i in range(numel)
    ]
    index = np.indices(shape).reshape(len(shape), int(np.prod(shape)))
    steps = np.array(strides, np.int64).reshape(2, len(shape))
    assert (steps @ index).T.tolist() == walked


@given(layouts())
@settings(deadline=None, max_examples=300)
def test_a_run_lies_in_one_row(layout) -> None:
    """Packs of ``run`` elements never cross a row, and where stride is 1 all start aligned."""
    shape, *strides = layout
    packed, numel, run, _ = strided_of(shape, *((shape, s) for s in strides))
    inner = [s[rank_of(packed) - 1] for s in unpack(packed, 2)[2]]
    assert 0 == numel % run
    assert run in (1, 2, 4, 8, 16)
    for i in range(0, numel, run):
        first = locate(packed, 2, i)
        for k in range(run):
            assert [f + k * s for f, s in zip(first, inner, strict=True)] == locate(
                packed, 2, i + k
            )
        assert all(f % run == 0 for f, s in zip(first, inner, strict=True) if s == 1)


def rank_of(packed):
    """The number of dimensions."""
    return unpack(packed, 2)[4]


@given(st.integers(2, 2**40), st.integers(0, 2**63 - 1))
@settings(max_examples=2000)
def test_division_by_multiplication_is_exact(size, i) -> None:
    """The header's division is the integer quotient for every index of 63 bits."""
    shape, magic, _, shift, *_ = unpack(strided_of((3, size), ((3, size), (size * 2, 1))).packed, 1)
    assert size == shape[1]
    for numerator in (i, i // size * size, max(i // size * size - 1, 0), 2**63 - 1):
        assert numerator // size == (numerator * magic[1] >> 64) >> shift[1]


def test_contiguous_tensors_have_one_dimension() -> None:
    """Dimensions that follow each other without gaps, in every tensor, become one."""
    assert [(24, 1, 1)] == collapse((2, 3, 4), ((12, 4, 1), (12, 4, 1)))
    assert [(6, 4, 0), (4, 1, 1)] == collapse((2, 3, 4), ((12, 4, 1), (0, 0, 1)))
    assert [(1, 0)] == collapse((), ((),))
    assert [(1, 0)] == collapse((1, 1), ((5, 7),))


def test_more_dimensions_than_kernels_know() -> None:
    """The leading dimensions of very many are walked by the host: one launch each."""
    shape = (2,) * 8
    strides = tuple(3**d for d in range(8))
    packed, numel, _, starts = strided_of(shape, (shape, strides))
    assert (64, 4) == (numel, len(starts))
    assert MAX_RANK == unpack(packed, 1)[4]


@pytest.mark.parametrize("signature", ["PPq", "PPqff2", "PPPq3", "PqQ1", "Pi1"])
def test_packed_arguments_lie_where_signatures_say(signature) -> None:
    """The buffer has C's layout: as long as the fields that rocm_hip is told of."""
    assert struct.calcsize(expand(signature)) == packer(signature).size


def test_unknown_letters_are_refused() -> None:
    """A signature with a letter that we do not know is refused when it is declared."""
    with pytest.raises(ValueError, match=r"'Px'.*none of P q"):
        packer("Px")
