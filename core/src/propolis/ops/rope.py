"""Rotary position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import DTypeError
from propolis.ops.cast import cast
from propolis.ops.fill import kv_append
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


def expect_tables(name: str, cos: Tensor, sin: Tensor) -> None:
    """Check their dtype."""
    same_dtype(name, cos=cos, sin=sin)
    if cos.dtype is not dtypes.f32:
        msg = f"{name}: cos and sin are {cos.dtype}; supported: f32; ops.cast converts"
        raise DTypeError(msg)


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
        OpError: a position is outside the tables (on the CPU: a GPU does not look).
    """
    expect_tables("rope", cos, sin)
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


def _turned_or_not(
    f: Callable[..., Any],
    cache: Array,
    x: Array,
    slots: Array,
    positions: Array,
    cos: Array,
    sin: Array,
    *,
    interleaved: bool = False,
) -> Array:
    """Of keys as of ``rope``; of values, and of what was there, the numbers themselves."""
    cache, x, cos, sin = np.abs(cache), np.abs(x), np.abs(cos), np.abs(sin)
    turns = [f(cache, x, slots, positions, cos, s, interleaved=interleaved) for s in (sin, -sin)]
    return np.asarray(np.maximum(*np.abs(turns)))


@op(
    {"cache": {dtypes.f32, dtypes.f16, dtypes.bf16}},
    mutates=True,
    tolerance=ROUNDED,
    magnitude=_turned_or_not,
)
def rope_kv_append(
    cache: Tensor,
    x: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """
    Write the new keys, rotated, and the new values of each sequence into its cache, in place.

    ``rope`` of the first half of the heads, which are keys, and ``kv_append`` of all, rounded to
    the cache's dtype: what a decoder's layer does between two products.

    Args:
        cache: (batch, capacity, 2 * heads, head_dim), any strides; heads of keys, then of values.
        x: (batch, tokens, 2 * heads, head_dim), f32 or the cache's dtype; computed in f32 or wider.
        slots: (batch, tokens), i32, each in [0, capacity): where they go.
        positions: (batch, tokens), i32, each in [0, rows of the tables).
        cos: (rows, r/2), f32, with ``r <= head_dim``, as ``rope`` has it.
        sin: same shape and dtype as ``cos``.
        interleaved: pairs are neighbours; see ``rope``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: a slot is outside the cache or a position outside the tables (on the CPU: a GPU
            does not look).
    """
    expect_tables("rope_kv_append", cos, sin)
    same_dtype("rope_kv_append", slots=slots, positions=positions)
    if x.dtype not in (dtypes.f32, cache.dtype) or positions.dtype is not dtypes.i32:
        msg = (
            f"rope_kv_append: x is {x.dtype}, of a cache in {cache.dtype}, and positions are "
            f"{positions.dtype}; supported: f32 or the cache's dtype, and i32; ops.cast converts"
        )
        raise DTypeError(msg)
    fits = (
        len(cache.shape) == len(x.shape) == 4
        and cache.shape[0] == x.shape[0]
        and cache.shape[2:] == x.shape[2:]
        and x.shape[2] % 2 == 0
        and slots.shape == positions.shape == x.shape[:2]
        and len(cos.shape) == 2
        and cos.shape == sin.shape
        and 2 * cos.shape[1] <= x.shape[3]
    )
    expect(
        "rope_kv_append",
        fits,
        "cache is (batch, capacity, 2 * heads, dim), x (batch, tokens, 2 * heads, dim), slots and "
        "positions (batch, tokens), cos and sin (rows, <= dim/2)",
        cache=cache,
        x=x,
        slots=slots,
        positions=positions,
        cos=cos,
        sin=sin,
    )


@rope_kv_append.decomposes(
    lambda cache: {
        rope: (dtypes.f32, dtypes.i32),
        kv_append: (cache, dtypes.i32),
        cast: (dtypes.f32,),
    }
)
def _rope_kv_append(
    cache: Tensor,
    x: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    heads = x.shape[2] // 2
    x = x if x.dtype is dtypes.f32 else cast(x, dtypes.f32)
    keys, values = (x.narrow(2, start, heads) for start in (0, heads))
    keys = rope(keys, positions, cos, sin, interleaved=interleaved)
    for start, new in ((0, keys), (heads, values)):
        kept = new if cache.dtype is new.dtype else cast(new, cache.dtype)
        kv_append(cache.narrow(2, start, heads), kept, slots)
