"""Interpolation to a size by filters."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.ops.upsample import resize_size
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import walk
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.upsample import Mode

MODULE: Final = Module("upsample_filters")

_FILTERS: Final = Structure(
    "Filters",
    {
        **dict.fromkeys(("strides", "size"), "2q"),
        **dict.fromkeys(("ratio", "start", "reach", "step"), "2d"),
        **dict.fromkeys(("cubic", "cut"), "i"),
    },
)
_KERNELS: Final = {d: MODULE.kernel(d.name, ("PPqq", _FILTERS, "3")) for d in dtypes.FLOATS}


def resize2d(
    out: Tensor,
    x: Tensor,
    /,
    size: tuple[int, int] | None = None,
    *,
    mode: Mode = "bilinear",
    antialias: bool = False,
    align_corners: bool = False,
    scale: float | tuple[float, float] | None = None,
) -> None:
    """Rows and columns are filtered at once; weights are computed where they are needed."""
    size, scales = resize_size(x.shape, size, scale)
    filters = []
    for axis, (length, n) in enumerate(zip(x.shape[2:], size, strict=True)):
        ratio = length / n if scales is None else 1 / scales[axis]
        if align_corners:
            ratio = (length - 1) / (n - 1) if n > 1 else 0.0
        corners = align_corners and not antialias
        start = 0.0 if corners else 0.5 * ratio - 0.5
        wider = max(ratio, 1.0) if antialias else 1.0
        reach = wider * (2 if mode == "bicubic" else 1)
        filters.append((ratio, start, reach, 1 / wider))
    image, channel, *strides = x.strides
    _KERNELS[x.dtype](
        out.device,
        blocks_for(out.numel, 1),
        *(pointer(out), pointer(x), out.numel, out.shape[-1]),
        *(*strides, *x.shape[2:]),
        *(n for numbers in zip(*filters, strict=True) for n in numbers),
        *(int(mode == "bicubic"), int(antialias)),
        walk(out.shape, (image, channel, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
    )


OPS: Final = [implementation("resize2d", resize2d, dtypes.FLOATS, in_place=False)]
