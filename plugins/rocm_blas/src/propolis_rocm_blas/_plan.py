"""
A product of strided tensors as BLAS can say it.

BLAS knows column-major matrices: neighbours in a column lie side by side, and columns a leading
dimension apart.  Our row-major ``out = a @ b`` is its ``out' = b' @ a'``: ``b`` comes first.  One
of the two strides of an operand must be 1, the other no smaller than what it steps over.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple


if TYPE_CHECKING:
    from propolis.layout import Shape

LARGEST: Final = 2**31 - 1
"""Of sizes and leading dimensions, which are 32-bit numbers."""

MOST_CALLS: Final = 64
"""Of rocBLAS for one product; batches that take more are better left to kernels that take any."""


class Side(NamedTuple):
    """
    One operand.

    Attributes:
        deep: the elements that are summed over lie side by side; else the rows do.
        leading: the distance between the others, in elements.
    """

    deep: bool
    leading: int


class Plan(NamedTuple):
    """
    A product in calls of rocBLAS; steps and starts are in elements.

    Attributes:
        m: rows of ``a`` that share one ``b``.
        n: columns of ``b``.
        k: what is summed over.
        a: the first operand.
        b: the second.
        batches: products in one call.
        steps: between them, of the output, ``a`` and ``b``.
        starts: where each call begins, in the output, ``a`` and ``b``.
    """

    m: int
    n: int
    k: int
    a: Side
    b: Side
    batches: int
    steps: tuple[int, int, int]
    starts: tuple[tuple[int, int, int], ...]


def side(rows: int, row: int, depth: int, step: int) -> Side | None:
    """
    An operand of ``rows`` rows, each of ``depth`` elements that are summed over.

    Args:
        rows: of it; columns, where it is the second.
        row: elements between them.
        depth: elements of each.
        step: elements between these.

    >>> side(4, 6, 6, 1), side(4, 1, 6, 4)
    (Side(deep=True, leading=6), Side(deep=False, leading=4))
    >>> side(4, 12, 6, 2)
    """
    # Of one element, the distance to the next is what suits.
    if rows == 1:
        row = 1 if step > 1 else depth
    if depth == 1:
        step = 1 if row >= 1 else rows
    if step == 1 and row >= depth:
        return Side(deep=True, leading=row)
    if row == 1 and step >= rows:
        return Side(deep=False, leading=step)
    return None


@lru_cache(maxsize=4096)
def plan(
    lead: Shape,
    n: int,
    k: int,
    a_strides: Shape,
    b_lead: Shape,
    b_strides: Shape,
    names: str = "ab",
) -> Plan | str:
    """
    A product's calls, or why BLAS cannot say it.

    Args:
        lead: the output's dimensions before the last; none is 0.
        n: its last, not 0.
        k: what is summed over.
        a_strides: of ``a`` along ``lead``, then along ``k``.
        b_lead: of ``b`` along ``lead``: 0 along the rows, and where it repeats.
        b_strides: of ``b`` along ``n``, then along ``k``.
        names: what the op calls them, a letter each.

    >>> plan((2, 3), 5, 4, (12, 4, 1), (0, 0), (1, 5))[:3]
    (6, 5, 4)
    >>> plan((3,), 5, 4, (8, 2), (0,), (1, 5))
    'a has strides (8, 2) of (3, 4), and BLAS needs 1 for one of them'
    """
    if k == 0:
        return "it sums nothing"
    dims = _collapse(lead, a_strides[:-1], b_lead)
    m, row = 1, 0
    if dims and dims[-1][2] == 0:
        m, row, _ = dims.pop()
    a, b = side(m, row, k, a_strides[-1]), side(n, b_strides[0], k, b_strides[1])
    if a is None:
        return _unsayable(names[0], (m, k), (row, a_strides[-1]))
    if b is None:
        return _unsayable(names[1], (n, k), b_strides)
    if max(m, n, k, a.leading, b.leading, *(size for size, *_ in dims)) > LARGEST:
        return f"a size or a stride is larger than rocBLAS's 32-bit numbers ({LARGEST})"
    return _calls(dims, m, n, k, a, b)


def _unsayable(name: str, shape: Shape, strides: Shape) -> str:
    return f"{name} has strides {strides} of {shape}, and BLAS needs 1 for one of them"


def _calls(
    dims: list[tuple[int, int, int]], m: int, n: int, k: int, a: Side, b: Side
) -> Plan | str:
    """The longest dimension that is left is a call's batches; the others repeat the call."""
    steps = [m * n * math.prod(size for size, *_ in dims[i + 1 :]) for i in range(len(dims))]
    within = max(range(len(dims)), key=lambda i: dims[i][0], default=None)
    outer = [i for i in range(len(dims)) if i != within]
    calls = math.prod(dims[i][0] for i in outer)
    if calls > MOST_CALLS:
        return f"its batches have strides that take {calls} calls, more than {MOST_CALLS}"
    places = list(itertools.product(*(range(dims[i][0]) for i in outer)))
    distances = [(steps[i], dims[i][1], dims[i][2]) for i in outer]
    starts = tuple(
        (
            sum(index * d[0] for index, d in zip(place, distances, strict=True)),
            sum(index * d[1] for index, d in zip(place, distances, strict=True)),
            sum(index * d[2] for index, d in zip(place, distances, strict=True)),
        )
        for place in places
    )
    if within is None:
        return Plan(m, n, k, a, b, 1, (m * n, 0, 0), ((0, 0, 0),))
    size, a_step, b_step = dims[within]
    return Plan(m, n, k, a, b, size, (steps[within], a_step, b_step), starts)


def _collapse(shape: Shape, a: Shape, b: Shape) -> list[tuple[int, int, int]]:
    """(size, stride of a, stride of b) of as few dimensions as have the same elements in order."""
    dims: list[tuple[int, int, int]] = []
    for size, a_step, b_step in zip(shape, a, b, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1:] == (a_step * size, b_step * size):
            dims[-1] = (dims[-1][0] * size, a_step, b_step)
        else:
            dims.append((size, a_step, b_step))
    return dims


__all__ = ["LARGEST", "MOST_CALLS", "Plan", "Side", "plan", "side"]
