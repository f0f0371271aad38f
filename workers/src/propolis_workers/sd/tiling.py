"""
Decoding latents in tiles that overlap: less memory, and slightly other pixels.

Each tile is blended with the one above and the one to its left over their overlap,
linearly, as diffusers' ``tiled_decode`` does.  Norms and attention see a tile alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import ops
from propolis.errors import OutOfMemoryError
from propolis_workers import events


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor

SMALLEST: Final = 8  # latent pixels along a tile's side: below, the blend is all there is
OVERLAP: Final = 0.25


def decode_in_less_memory(
    decode: Callable[[Tensor], Tensor], z: Tensor, largest: int, scale: int, reason: str
) -> tuple[Tensor, int]:
    """
    Decode in the largest tiles that fit; logs ``vae.tiled`` for each size that is tried.

    Args:
        decode: latents -> pixels.
        z: (b, channels, h, w).
        largest: latent pixels along a tile's side.
        scale: pixels along each side of a latent pixel.
        reason: why not all at once.

    Returns:
        (b, channels, scale h, scale w), and the side of the tiles.

    Raises:
        OutOfMemoryError: the smallest tiles do not fit either.
    """
    tile = largest
    while tile >= max(z.shape[2:]):  # that was all at once
        tile //= 2
    while tile >= SMALLEST:
        events.VAE_TILED.emit(device=z.device.id, tile=tile * scale, reason=reason)
        try:
            return decode_tiled(decode, z, tile, scale), tile
        except (OutOfMemoryError, MemoryError) as error:
            reason = str(error)
        tile //= 2
    height, width = (scale * n for n in z.shape[2:])
    msg = (
        f"{z.device.id} has too little memory to decode {width}x{height} pixels, in tiles too: "
        f"{reason}; make smaller images, or fewer at once"
    )
    raise OutOfMemoryError(msg)


def decode_tiled(
    decode: Callable[[Tensor], Tensor],
    z: Tensor,
    tile: int,
    scale: int,
    overlap: float = OVERLAP,
) -> Tensor:
    """
    Decode tile by tile.

    Args:
        decode: latents -> pixels.
        z: (b, channels, h, w); where it is no larger than a tile, it is decoded at once.
        tile: latent pixels along a tile's side.
        scale: pixels along each side of a latent pixel.
        overlap: of neighbours, as a share of a tile.

    Returns:
        (b, channels, scale h, scale w).
    """
    height, width = z.shape[2:]
    if max(height, width) <= tile:
        return decode(z)
    step = max(int(tile * (1 - overlap)), 1)
    blend = (tile - step) * scale
    out: Tensor | None = None
    above: list[Tensor] = []  # the lower ends of the row above
    for top in range(0, height, step):
        below: list[Tensor] = []
        left: Tensor | None = None  # the right end of the tile before
        rows = z.narrow(2, top, min(tile, height - top))
        for column, start in enumerate(range(0, width, step)):
            y = decode(rows.narrow(3, start, min(tile, width - start)).contiguous())
            if above:
                _blend(above[column], y, 2)
            if left is not None:
                _blend(left, y, 3)
            if blend:
                below.append(_end(y, 2, blend))
                left = _end(y, 3, blend)
            if out is None:
                out = y.device.empty((*y.shape[:2], height * scale, width * scale), y.dtype)
            kept = y.narrow(2, 0, min(step * scale, y.shape[2]))
            kept = kept.narrow(3, 0, min(step * scale, y.shape[3]))
            place = out.narrow(2, top * scale, kept.shape[2])
            ops.assign(place.narrow(3, start * scale, kept.shape[3]), kept)
        above = below
    assert out is not None  # noqa: S101  (latents have a pixel)
    return out


def _end(y: Tensor, dim: int, length: int) -> Tensor:
    """A copy of the last rows or columns."""
    length = min(length, y.shape[dim])
    return ops.copy(y.narrow(dim, y.shape[dim] - length, length))


def _blend(before: Tensor, y: Tensor, dim: int) -> None:
    """Fade from the end of the tile before into the beginning of this one, in place."""
    length = min(before.shape[dim], y.shape[dim])
    ramp = ops.arange(y.device.empty((length,), y.dtype), 0, 1 / length)
    ramp = ramp.unsqueeze(1) if dim == 2 else ramp
    old = before.narrow(dim, before.shape[dim] - length, length)
    new = y.narrow(dim, 0, length)
    faded = ops.mul(old, ops.affine(ramp, -1, 1))
    ops.assign(new, ops.add.into(faded, faded, ops.mul(new, ramp)))


__all__ = ["OVERLAP", "SMALLEST", "decode_in_less_memory", "decode_tiled"]
