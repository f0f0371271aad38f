"""Elementwise ops of two tensors, broadcast by numpy's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.opspec.infer import broadcast
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import Op
from propolis.opspec.spec import op
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import Tolerance


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis.tensor import Tensor


_CONTRACT = """

Args:
    a: any shape, any plain dtype; f16, bf16 and f8 are computed in f32.
    b: a shape that broadcasts with ``a``'s, same dtype.

Returns:
    The broadcast shape, {result}.

Raises:
    DTypeError: the dtypes differ, or are block formats.
    ShapeError: the shapes do not broadcast.
"""


# One IEEE operation: f32 has more than twice the bits of the narrow floats and two more, so
# rounding its result again rounds the true one (Figueroa 1995).
_ROUNDED_ONCE = dict.fromkeys(PLAIN, EXACT)

# The same, but products and quotients among bf16's denormals lie closer to ties than f32's
# own denormals tell apart: the last bit, 2**-133, may differ there.
_SCALED = {**_ROUNDED_ONCE, dtypes.bf16: Tolerance(0.0, 2.0**-133)}


def _arithmetic(
    name: str,
    meaning: str,
    tolerance: Mapping[DType, Tolerance] = _ROUNDED_ONCE,
) -> Op[[Tensor, Tensor]]:
    """Declare an op whose result has its arguments' dtype."""

    def infer(a: Tensor, b: Tensor, /) -> Meta:
        if a.dtype is not b.dtype:
            same_dtype(name, a=a, b=b)
        return broadcast(name, a.layout.shape, b.layout.shape), a.dtype

    infer.__name__ = name
    infer.__doc__ = meaning + _CONTRACT.format(result="dtype of ``a``")
    return op({"a": PLAIN}, elementwise=True, tolerance=tolerance)(infer)


def _comparison(name: str, meaning: str) -> Op[[Tensor, Tensor]]:
    """Declare an op whose result is u8, 1 for true and 0 for false."""

    def infer(a: Tensor, b: Tensor, /) -> Meta:
        same_dtype(name, a=a, b=b)
        return broadcast(name, a.shape, b.shape), dtypes.u8

    infer.__name__ = name
    infer.__doc__ = meaning + _CONTRACT.format(result="u8: 1 for true, 0 for false")
    return op({"a": PLAIN}, elementwise=True, tolerance={})(infer)


add = _arithmetic("add", "``a + b``; integers wrap around.")
sub = _arithmetic("sub", "``a - b``; integers wrap around.")
mul = _arithmetic("mul", "``a * b``; integers wrap around.", _SCALED)
div = _arithmetic(
    "div",
    "``a / b``; integers truncate toward zero, and by zero give 0 (the quotient that does\n"
    "not trap anywhere); the minimum by -1 wraps around.",
    _SCALED,
)
remainder = _arithmetic(
    "remainder",
    "What division of ``a`` by ``b`` leaves, with the sign of ``b``, as in Python and numpy:\n"
    "``fmod(a, b)``, plus ``b`` where their signs differ.  By 0 it is NaN, of integers 0.",
)
maximum = _arithmetic("maximum", "The larger of ``a`` and ``b``; NaN where either is.")
minimum = _arithmetic("minimum", "The smaller of ``a`` and ``b``; NaN where either is.")
pow = _arithmetic(  # noqa: A001  (the field's name)
    "pow",
    "``a ** b``, as C's pow; integers wrap around, and to a negative power are 0, save 1\nand -1.",
    RELATIVE,
)
eq = _comparison("eq", "``a == b``; NaN equals nothing.")
ne = _comparison("ne", "``a != b``; NaN differs from everything.")
lt = _comparison("lt", "``a < b``; false with NaN.")
le = _comparison("le", "``a <= b``; false with NaN.")
gt = _comparison("gt", "``a > b``; false with NaN.")
ge = _comparison("ge", "``a >= b``; false with NaN.")
