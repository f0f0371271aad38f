"""Choice between two tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.dtypes import INTEGERS
from propolis.dtypes import PLAIN
from propolis.opspec.infer import broadcast
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op(
    {"condition": INTEGERS, "a": PLAIN},
    elementwise=True,
    tolerance=dict.fromkeys(PLAIN, EXACT),
)
def where(condition: Tensor, a: Tensor, b: Tensor, /) -> Meta:
    """
    ``a`` where ``condition`` is not 0, else ``b``; all three broadcast.

    Args:
        condition: any integer dtype.
        a: any plain dtype.
        b: same dtype as ``a``.

    Returns:
        The broadcast shape, dtype of ``a``.

    Raises:
        DTypeError: a and b differ in dtype, or the condition is no integer.
        ShapeError: the shapes do not broadcast.
    """
    same_dtype("where", a=a, b=b)
    shape = broadcast("where", condition.shape, broadcast("where", a.shape, b.shape))
    return shape, a.dtype
