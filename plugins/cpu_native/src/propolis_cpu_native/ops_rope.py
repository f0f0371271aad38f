"""Rotary position embeddings, and where keys and values go."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import strided_implementation
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor

_POSITIONS: Final = frozenset({dtypes.i32, dtypes.i64})


def _packed(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> str | None:
    """None, or why not: elements of a row lie apart."""
    for tensor in (x, cos, sin):
        if tensor.layout.strides[-1] != 1 and tensor.shape[-1] > 1:
            return "elements of a head, or of a row of cos or sin, do not lie side by side"
    return None


def rope(
    out: Tensor,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate pairs of elements of each head by its token's position."""
    native().rope(
        out.array,
        x.array,
        positions.array,
        positions.dtype is dtypes.i64,
        cos.array,
        sin.array,
        interleaved,
        KINDS[x.dtype],
        out.device.threads,
    )


def writes_rows(
    cache: Tensor,
    x: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    *,
    interleaved: bool = False,
) -> str | None:
    """As :func:`_packed`, of the cache too."""
    if cache.strides[-1] != 1 and cache.shape[-1] > 1:
        return "elements of a head of the cache do not lie side by side"
    return _packed(x, positions, cos, sin, interleaved=interleaved)


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
    """Write keys, rotated, and values, as they are kept; nothing if one goes outside."""
    tensors = (cache, x, slots, positions, cos, sin)
    kinds = KINDS[x.dtype], KINDS[cache.dtype]
    native().rope_kv_append(*(t.array for t in tensors), interleaved, *kinds, cache.device.threads)


def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """``cache[b, positions[b, t]] = x[b, t]``; nothing is written if one is outside."""
    wide = positions.dtype is dtypes.i64
    native().kv_append(cache.array, x.array, positions.array, wide, cache.dtype.block_bytes)


OPS: Final = [
    *(
        build("rope", rope, dtypes={"x": FLOATS, "positions": _POSITIONS}, supports=supports)
        for build, supports in ((implementation, None), (strided_implementation, _packed))
    ),
    implementation("rope_kv_append", rope_kv_append, supports=writes_rows, strided=True),
    implementation(
        "kv_append", kv_append, dtypes={"cache": PLAIN, "positions": _POSITIONS}, strided=True
    ),
]
