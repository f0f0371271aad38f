"""The windows of a convolution as a matrix."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis.ops.conv import conv_sizes
from propolis.ops.conv import spatial
from propolis_rocm_kernels._elementwise import blocks_for
from propolis_rocm_kernels._elementwise import pack_of
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import reciprocal
from propolis_rocm_kernels._layouts import walk
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.conv import Sizes

MODULE: Final = Module("conv_columns")

_SHAPE: Final = Structure(
    "WindowShape", dict.fromkeys(("strides", "size", "kernel", "padding", "dilation"), "2q")
)
_KERNELS: Final = {n: MODULE.kernel(f"b{n}", ("PPq", _SHAPE, "Qi4")) for n in (1, 2, 4, 8)}


def im2col(
    out: Tensor,
    x: Tensor,
    /,
    kernel: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> None:
    """Each window a row: all taps of a channel, then those of the next."""
    if out.numel == 0:
        return
    size = x.shape[2:]
    taps, (down, along), pads, spread = (
        spatial("im2col", "sizes", n, 2, least=0) for n in (kernel, stride, padding, dilation)
    )
    rows, columns = conv_sizes("im2col", size, taps, (down, along), pads, spread)
    image, channel = x.strides[:2]
    packed = walk(
        (x.shape[0], rows, columns, x.shape[1], taps[0] * taps[1]),
        (image, 0, 0, channel, 0),
        (0, down, 0, 0, 0),
        (0, 0, along, 0, 0),
        (0, 0, 0, 0, 1),
    )
    nbytes = x.dtype.block_bytes
    _KERNELS[nbytes](
        out.device,
        blocks_for(out.numel, pack_of(nbytes, heavy=True)),
        *(pointer(out), pointer(x), out.numel),
        *chain(x.strides[2:], size, taps, pads, spread),
        *reciprocal(taps[1]),
        packed,
    )


OPS: Final = [implementation("im2col", im2col, dtypes.PLAIN, in_place=False)]
