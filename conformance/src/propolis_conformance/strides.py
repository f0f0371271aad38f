"""Strides and offset: how a tensor's elements lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from propolis.layout import Shape

NAMES: Final = ("permuted", "transposed", "repeated", "offset", "step", "gaps")


@dataclass(frozen=True, slots=True)
class StridePattern:
    """
    Strides by their making; empty tuples and 0 are row-major.

    Attributes:
        order: the dimensions, the slowest in memory first.
        steps: for each dimension, elements from one to the next beyond the dense distance.
        gaps: for each dimension, places left free after its last.
        repeat: whether all of the first dimension is its first slice.
        offset: elements before the first.
    """

    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    repeat: bool = False
    offset: int = 0

    def __str__(self) -> str:
        said = [
            f"{name} {'.'.join(map(str, value))}"
            for name in ("order", "steps", "gaps")
            if (value := getattr(self, name))
        ]
        said += ["repeat"] * self.repeat + [f"offset {self.offset}"] * bool(self.offset)
        return f"({', '.join(said) or 'contiguous'})"

    def strides(self, shape: Shape) -> Shape:
        """Elements from one to the next along each dimension."""
        strides, reach = [0] * len(shape), 1
        for d in reversed(self.order or range(len(shape))):
            strides[d] = reach * (self.steps[d] if self.steps else 1)
            if self.repeat and d == 0:
                strides[d] = 0
                continue
            reach = strides[d] * max(shape[d] + (self.gaps[d] if self.gaps else 0), 1)
        return tuple(strides)

    def whole_blocks(self) -> StridePattern:
        """The same with blocks whole along rows: what would cut them becomes gaps."""
        if not self.order and not self.steps and not self.gaps:
            return self
        rank = len(self.order or self.steps or self.gaps)
        return StridePattern(gaps=(0,) * (rank - 1) + (1,), repeat=self.repeat, offset=self.offset)


def named(name: str, rank: int) -> StridePattern:
    """The pattern of one of ``NAMES``, or ``contiguous``, for that many dimensions."""
    if not rank:
        return StridePattern(offset=3 if name == "offset" else 0)
    plain = tuple(range(rank))
    return {
        "permuted": StridePattern(order=plain[::-1]),
        "transposed": StridePattern(order=(*plain[:-2], *plain[-2:][::-1])),
        "repeated": StridePattern(repeat=True),
        "offset": StridePattern(offset=3),
        "step": StridePattern(steps=(1,) * (rank - 1) + (2,)),
        "gaps": StridePattern(gaps=(1,) * rank, offset=1),
    }.get(name, StridePattern())
