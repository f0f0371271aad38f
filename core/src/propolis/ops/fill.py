"""Copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.ops._infer import expect
from propolis.ops._infer import same_dtype
from propolis.ops._spec import Meta
from propolis.ops._spec import op


if TYPE_CHECKING:
    from propolis.tensor import Tensor


@op({"x": frozenset(dtypes.ALL)}, tolerance={})
def copy(x: Tensor, /) -> Meta:
    """
    A row-major copy.

    Args:
        x: any shape and strides, any dtype.

    Returns:
        Shape and dtype of ``x``, contiguous, in fresh memory.
    """
    return x.shape, x.dtype


@op({"cache": PLAIN, "positions": {dtypes.i32, dtypes.i64}}, mutates=True, tolerance={})
def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """
    Write the new keys or values of each sequence into its cache, in place.

    ``cache[b, positions[b, t]] = x[b, t]``.  Positions are data, not shape, so that
    a captured decode step can be replayed at any position.

    Args:
        cache: (batch, capacity, heads, head_dim), any strides.
        x: (batch, tokens, heads, head_dim), same dtype.
        positions: (batch, tokens), i32 or i64, each in [0, capacity).

    Raises:
        DTypeError: cache and x differ in dtype.
        ShapeError: the shapes do not fit together.
        OpError: a position is outside the cache (CPU, and GPU in debug mode).
    """
    same_dtype("kv_append", cache=cache, x=x)
    fits = (
        len(cache.shape) == len(x.shape) == 4
        and cache.shape[0] == x.shape[0]
        and cache.shape[2:] == x.shape[2:]
        and positions.shape == x.shape[:2]
    )
    expect(
        "kv_append",
        fits,
        "cache is (batch, capacity, heads, dim), x (batch, tokens, heads, dim), "
        "positions (batch, tokens)",
        cache=cache,
        x=x,
        positions=positions,
    )
