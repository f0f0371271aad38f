"""Pooling over windows."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.ops.conv import spatial
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import reciprocal
from propolis_rocm_kernels._layouts import walk
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis.ops.conv import Sizes
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("pool")

_SHAPE: Final = Structure(
    "PoolShape",
    {
        **dict.fromkeys(
            ("strides", "size", "kernel", "stride", "padding", "dilation", "out"), "3q"
        ),
        "magic": "3Q",
        "shift": "3i",
        "adaptive": "i",
    },
)
_AVG: Final = {d: MODULE.kernel(f"avg_{d.name}", ("PPqqq", _SHAPE, "4")) for d in dtypes.FLOATS}
_MAX: Final = {d: MODULE.kernel(f"max_{d.name}", ("PPqq", _SHAPE, "4")) for d in dtypes.PLAIN}


def _average(name: str) -> OpImpl:
    def run(
        out: Tensor,
        x: Tensor,
        /,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_padding: bool = True,
    ) -> None:
        del ceil_mode  # the shape of the output says it
        given = kernel, kernel if stride is None else stride, padding, 1
        _launch(_AVG[x.dtype], out, x, given, int(count_padding))

    return implementation(name, run, dtypes.FLOATS, in_place=False)


def _largest(name: str) -> OpImpl:
    def run(
        out: Tensor,
        x: Tensor,
        /,
        kernel: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        del ceil_mode
        given = kernel, kernel if stride is None else stride, padding, dilation
        _launch(_MAX[x.dtype], out, x, given)

    return implementation(name, run, dtypes.PLAIN, in_place=False)


def adaptive_avg_pool2d(out: Tensor, x: Tensor, /, size: Sizes) -> None:
    """The mean of each of ``size`` windows that cover the image."""
    del size
    _launch(_AVG[x.dtype], out, x, None, 0)


def adaptive_max_pool2d(out: Tensor, x: Tensor, /, size: Sizes) -> None:
    """The largest element of each."""
    del size
    _launch(_MAX[x.dtype], out, x, None)


def _launch(
    kernel: Kernel,
    out: Tensor,
    x: Tensor,
    windows: tuple[Sizes, Sizes, Sizes, Sizes] | None,
    *options: int,
) -> None:
    """Windows are their kernel, stride, padding and dilation; None of those that adapt."""
    if out.numel == 0:
        return
    rank = len(x.shape) - 2
    flat = (1,) * (3 - rank)
    shape = (*out.shape[:2], *flat, *out.shape[2:])
    given: list[Shape] = [(*flat, *x.strides[2:]), (*flat, *x.shape[2:])]
    for sizes, neutral in zip(windows or (1, 1, 0, 1), (1, 1, 0, 1), strict=True):
        own = spatial("pool", "sizes", sizes, rank, least=0)
        given.append((*(neutral for _ in flat), *own))
    magic, shift = zip(*map(reciprocal, shape[2:]), strict=True)
    places = walk(
        shape,
        (*x.strides[:2], 0, 0, 0),
        (0, 0, 1, 0, 0),
        (0, 0, 0, 1, 0),
        (0, 0, 0, 0, 1),
    )
    kernel(
        out.device,
        blocks_for(out.numel, 1),
        *(pointer(out), pointer(x), out.numel, shape[-1], *options),
        *chain(*given),
        *(*shape[2:], *magic, *shift, int(windows is None)),
        places,
    )


OPS: Final = [
    _average("avg_pool2d"),
    _average("avg_pool3d"),
    _largest("max_pool2d"),
    _largest("max_pool3d"),
    implementation("adaptive_avg_pool2d", adaptive_avg_pool2d, dtypes.FLOATS, in_place=False),
    implementation("adaptive_max_pool2d", adaptive_max_pool2d, dtypes.PLAIN, in_place=False),
]
