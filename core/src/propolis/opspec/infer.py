"""What inference functions share: one wording for every op's errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import DTypeError
from propolis.errors import ShapeError


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.tensor import Tensor


def converts(*kinds: DType) -> str:
    """What makes one of these dtypes of another."""
    return ("ops.cast converts", "ops.(de)quantize converts")[any(k.is_block for k in kinds)]


def same_dtype(op: str, **tensors: Tensor) -> None:
    """
    Check that all of them have one dtype.

    Raises:
        DTypeError: they do not; names each.
    """
    kinds = [t.dtype for t in tensors.values()]
    if kinds.count(kinds[0]) < len(kinds):
        given = ", ".join(f"{name} is {t.dtype}" for name, t in tensors.items())
        msg = f"{op}: {given}; they must have the same dtype; {converts(*kinds)}"
        raise DTypeError(msg)


def broadcast(op: str, a: Shape, b: Shape) -> Shape:
    """
    The shape both broadcast to, by numpy's rule.

    Raises:
        ShapeError: a dimension differs and is 1 in neither.
    """
    if a == b:
        return a
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    if any(m != n and 1 not in (m, n) for m, n in zip(left, right, strict=True)):
        msg = f"{op}: shapes {a} and {b} do not broadcast: each dimension must agree or be 1"
        raise ShapeError(msg)
    return tuple(n if m == 1 else m for m, n in zip(left, right, strict=True))


def expect(op: str, condition: bool, rule: str, **tensors: Tensor) -> None:
    """
    Check a rule on shapes.

    Raises:
        ShapeError: it does not hold; gives the rule and each shape.
    """
    if not condition:
        given = ", ".join(f"{name} {t.shape}" for name, t in tensors.items())
        msg = f"{op}: {rule}; got {given}"
        raise ShapeError(msg)
