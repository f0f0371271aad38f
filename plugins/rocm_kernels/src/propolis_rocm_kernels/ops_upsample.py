"""Interpolation to a size."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pack_of
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import reciprocal
from propolis_rocm_kernels._layouts import walk
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis.layout import Shape
    from propolis_rocm_kernels._kernels import Kernel

    Rule = Callable[[int, int], tuple[int, int, int]]

MODULE: Final = Module("upsample")

_SCALE: Final = Structure(
    "Scale",
    {
        **dict.fromkeys(("strides", "last", "step", "start", "by"), "2q"),
        "magic": "2Q",
        "shift": "2i",
    },
)
_NEAREST: Final = {n: MODULE.kernel(f"nearest_b{n}", ("PPqq", _SCALE, "3")) for n in (1, 2, 4, 8)}
_BILINEAR: Final = {
    d: MODULE.kernel(f"bilinear_{d.name}", ("PPqq", _SCALE, "3")) for d in dtypes.FLOATS
}


def upsample_nearest1d(out: Tensor, x: Tensor, /, size: int) -> None:
    """Each element is the one it falls on."""
    del size
    (*planes, length), (*steps, step) = x.shape, x.strides
    _nearest(
        out, x, _Image((*out.shape[:2], 1, out.shape[2]), (*planes, 1, length), (*steps, 0, step))
    )


def upsample_nearest2d(out: Tensor, x: Tensor, /, size: tuple[int, int]) -> None:
    """Each element is the one it falls on."""
    del size
    _nearest(out, x, _Image(out.shape, x.shape, x.strides))


def upsample_bilinear2d(
    out: Tensor, x: Tensor, /, size: tuple[int, int], *, align_corners: bool = False
) -> None:
    """Rows are blended, then columns."""
    del size
    rule = _corners if align_corners else _centres
    _launch(_BILINEAR[x.dtype], 1, out, x, _Image(out.shape, x.shape, x.strides), rule)


class _Image(NamedTuple):
    """Shapes of the result and of ``x``, and strides of that, in two dimensions."""

    out: Shape
    shape: Shape
    strides: Shape


def _nearest(out: Tensor, x: Tensor, image: _Image) -> None:
    nbytes = x.dtype.block_bytes
    _launch(_NEAREST[nbytes], pack_of(nbytes, heavy=True), out, x, image, _starts)


def _launch(kernel: Kernel, pack: int, out: Tensor, x: Tensor, image: _Image, rule: Rule) -> None:
    kernel(
        out.device,
        blocks_for(out.numel, pack),
        *(pointer(out), pointer(x), out.numel, out.shape[-1]),
        *_scale(image, rule),
        walk(image.out, (*image.strides[:2], 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
    )


# -- where element i of ``size`` lies in ``length``: (step, start, by) of a Scale ----------------


def _starts(length: int, size: int) -> tuple[int, int, int]:
    return length, 0, size


def _centres(length: int, size: int) -> tuple[int, int, int]:
    return 2 * length, length - size, 2 * size


def _corners(length: int, size: int) -> tuple[int, int, int]:
    return (length - 1, 0, size - 1) if size > 1 else (0, 0, 1)


@lru_cache(maxsize=1024)
def _scale(image: _Image, rule: Rule) -> tuple[int, ...]:
    """The fields of a ``Scale``, in order."""
    dims = []
    for length, size in zip(image.shape[2:], image.out[2:], strict=True):
        numbers = rule(length, size)
        common = math.gcd(*numbers)
        dims.append([n // common for n in numbers])
    columns = list(zip(*(((*d, *reciprocal(d[2]))) for d in dims), strict=True))
    last = (n - 1 for n in image.shape[2:])
    return (*image.strides[2:], *last, *(n for column in columns for n in column))


OPS: Final = [
    implementation("upsample_nearest1d", upsample_nearest1d, dtypes.PLAIN, in_place=False),
    implementation("upsample_nearest2d", upsample_nearest2d, dtypes.PLAIN, in_place=False),
    implementation("upsample_bilinear2d", upsample_bilinear2d, dtypes.FLOATS, in_place=False),
]
