"""Rotary position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


def _rotations(
    f: Callable[..., Any],
    x: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    *,
    interleaved: bool = False,
) -> Array:
    """A rotation is a sum of two products: it is largest where both are positive."""
    x, cos, sin = np.abs(x), np.abs(cos), np.abs(sin)
    # One of the two turns adds both products where every number is positive.
    turns = [f(x, positions, cos, s, interleaved=interleaved) for s in (sin, -sin)]
    return np.asarray(np.maximum(*np.abs(turns)))


@op(
    {"x": FLOATS, "positions": {dtypes.i32, dtypes.i64}},
    tolerance=ROUNDED,
    magnitude=_rotations,
)
def rope(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> Meta:
    """
    Rotate pairs of elements of each head by its token's position (Su et al. 2021).

    Pair ``i`` is (x1, x2) = (x[i], x[i + r/2]), or (x[2i], x[2i + 1]) when
    interleaved, of the first ``r`` elements; it becomes ``(x1*cos - x2*sin, x1*sin +
    x2*cos)`` with row ``positions[b, t]`` of the tables.  Elements from ``r`` on are
    copied.  Scaled variants differ only in the tables.

    Args:
        x: (batch, tokens, heads, head_dim), a float dtype; computed in f32 or wider.
        positions: (batch, tokens), i32 or i64, each in [0, rows of the tables).
        cos: (rows, r/2), f32, with ``r <= head_dim``.
        sin: same shape and dtype as ``cos``.
        interleaved: GPT-J's pairing of neighbours instead of GPT-NeoX's halves.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: a position is outside the tables (CPU, and GPU in debug mode).
    """
    same_dtype("rope", cos=cos, sin=sin)
    fits = (
        len(x.shape) == 4
        and positions.shape == x.shape[:2]
        and len(cos.shape) == 2
        and cos.shape == sin.shape
        and 2 * cos.shape[1] <= x.shape[3]
    )
    expect(
        "rope",
        fits,
        "x is (batch, tokens, heads, dim), positions (batch, tokens), cos and sin (rows, <= dim/2)",
        x=x,
        positions=positions,
        cos=cos,
        sin=sin,
    )
    return x.shape, x.dtype
