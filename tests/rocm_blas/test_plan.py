"""Which products can be said to BLAS, and that what is said is the product: in numpy, no device."""

from __future__ import annotations

import numpy as np
import pytest

from propolis_rocm_blas._plan import LARGEST
from propolis_rocm_blas._plan import MOST_CALLS
from propolis_rocm_blas._plan import Plan
from propolis_rocm_blas._plan import plan


def strides(array):
    """In elements, 0 where a dimension of size 1 repeats."""
    return tuple(s // array.itemsize for s in array.strides)


def memory(array):
    """The elements from the first of an array on, as BLAS sees them."""
    reach = sum((n - 1) * s for n, s in zip(array.shape, strides(array), strict=True)) + 1
    return np.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,))


def columns(flat, start, leading, rows, count):
    """A column-major matrix: BLAS would not take a leading dimension below its rows."""
    assert leading >= max(rows, 1)
    size = flat.itemsize
    assert start + leading * (count - 1) + rows <= flat.size
    return np.lib.stride_tricks.as_strided(flat[start:], (rows, count), (size, leading * size))


def as_blas_does(given, a, b, out):
    """Do the calls of a plan, over the operands' memory."""
    a, b, out = memory(a), memory(b), out.reshape(-1)
    m, n, k = given[:3]
    for at, a_at, b_at in given.starts:
        for i in range(given.batches):
            x, y = (b_at + i * given.steps[2], a_at + i * given.steps[1])
            deep = columns(b, x, given.b.leading, *((k, n) if given.b.deep else (n, k)))
            first = deep.T if given.b.deep else deep
            deep = columns(a, y, given.a.leading, *((k, m) if given.a.deep else (m, k)))
            second = deep if given.a.deep else deep.T
            columns(out, at + i * given.steps[0], n, n, m)[...] = first @ second


def numbers(*shape):
    """Whole numbers, so that sums are exact."""
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(np.float64)


CASES = {
    "plain": (numbers(3, 4), numbers(4, 5)),
    "transposed": (numbers(4, 3).T, numbers(5, 4).T),
    "rows apart": (numbers(3, 9)[:, 2:6], numbers(4, 12)[:, 1:6]),
    "batched": (numbers(6, 3, 4), numbers(6, 4, 5)),
    "two batch dimensions": (numbers(2, 6, 3, 4), numbers(2, 6, 4, 5)),
    "batches apart": (numbers(2, 6, 3, 4)[:, ::2], numbers(2, 3, 4, 5)),
    "heads in the middle": (
        numbers(2, 7, 6, 4).transpose(0, 2, 1, 3),
        numbers(2, 9, 6, 4).transpose(0, 2, 3, 1),
    ),
    "one b for all": (numbers(6, 3, 4), np.broadcast_to(numbers(4, 5), (6, 4, 5))),
    "one a for all": (np.broadcast_to(numbers(3, 4), (6, 3, 4)), numbers(6, 4, 5)),
    "crossed": (
        np.broadcast_to(numbers(2, 1, 3, 4), (2, 6, 3, 4)),
        np.broadcast_to(numbers(6, 4, 5), (2, 6, 4, 5)),
    ),
    "one row": (numbers(1, 8)[:, ::2], numbers(4, 5)),
    "one column": (numbers(3, 4), numbers(8, 1)[::2]),
    "one term": (numbers(3, 1), numbers(1, 5)),
    "one term, apart": (numbers(3, 7)[:, :1], numbers(1, 10)[:, ::2]),
    "one of all": (numbers(1, 1), numbers(1, 1)),
}


def planned(a, b):
    """What the plugin makes of a product of numpy's arrays."""
    *batch, m, k = a.shape
    *lead, step, row = strides(b)
    return plan((*batch, m), b.shape[-1], k, strides(a), (*lead, 0), (row, step))


@pytest.mark.parametrize("name", CASES)
def test_the_calls_are_the_product(name) -> None:
    """Done as BLAS does them, the calls give the product, and every element of it."""
    a, b = CASES[name]
    given = planned(a, b)
    assert isinstance(given, Plan), given
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan)
    as_blas_does(given, a, b, out)
    assert np.array_equal(a @ b, out)


def test_few_calls() -> None:
    """Batches that lie evenly are one call, and rows that share a weight one product."""
    assert planned(*CASES["two batch dimensions"])[5:] == (12, (15, 12, 20), ((0, 0, 0),))
    one_b = planned(*CASES["one b for all"])
    assert (one_b.m, one_b.batches, len(one_b.starts)) == (18, 1, 1)
    heads = planned(*CASES["heads in the middle"])
    assert (heads.batches, len(heads.starts)) == (6, 2)


UNSAYABLE = {
    "both strides of a": (numbers(3, 8)[:, ::2], numbers(4, 5), "a has strides (8, 2) of (3, 4)"),
    "both strides of b": (numbers(3, 4), numbers(8, 10)[::2, ::2], "b has strides (2, 20) of (5,"),
    "a repeats a row": (np.broadcast_to(numbers(4), (3, 4)), numbers(4, 5), "a has strides (0, 1)"),
    "a repeats along k": (
        np.broadcast_to(numbers(3, 1), (3, 4)),
        numbers(4, 5),
        "a has strides (1",
    ),
    "b repeats a row": (numbers(3, 4), np.broadcast_to(numbers(5), (4, 5)), "b has strides (1, 0)"),
    "rows overlap": (
        np.lib.stride_tricks.as_strided(numbers(9), (3, 4), (16, 8)),
        numbers(4, 5),
        "a has strides (2, 1)",
    ),
    "no terms": (numbers(3, 0), numbers(0, 5), "it sums nothing"),
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_cannot_be_said(name) -> None:
    """What BLAS has no words for is declined, with the strides that are in the way."""
    a, b, reason = UNSAYABLE[name]
    assert reason in str(planned(a, b))


def test_too_many_calls_and_too_large_numbers() -> None:
    """Batches that lie unevenly are taken up to a limit; sizes up to 32 bits."""
    most = plan((MOST_CALLS, 99, 3), 5, 4, (10**6, 24, 4, 1), (10**6, 40, 0), (1, 5))
    assert isinstance(most, Plan)
    assert len(most.starts) == MOST_CALLS
    more = plan((MOST_CALLS + 1, 99, 3), 5, 4, (10**6, 24, 4, 1), (10**6, 40, 0), (1, 5))
    assert more == f"its batches have strides that take {MOST_CALLS + 1} calls, more than 64"
    assert "32-bit" in str(plan((LARGEST + 1,), 5, 4, (4, 1), (0,), (1, 5)))
    assert "32-bit" in str(plan((3,), 5, 4, (LARGEST + 1, 1), (0,), (1, 5)))
