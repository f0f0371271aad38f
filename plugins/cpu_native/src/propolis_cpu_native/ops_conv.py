"""Convolutions of images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Prepared
from propolis import Priority
from propolis.ops.conv import spatial
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import matrix_implementation
from propolis_cpu_native._implementation import packed
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import lasting
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.conv import Sizes

LEAST: Final = 16
"""Channels of input and output, from which on tiles cost less than they save."""

MOST: Final = 1.25
"""Of a weight's bytes, what its tiles may take: they hold multiples of 32 channels and outputs."""

_AMX: Final = matrix_instructions() == "AMX"


def _supports(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str | None:
    """None, or why not."""
    del x, w, bias, stride, padding, dilation
    return None if groups == 1 else "there are groups of channels"


def _supports_tiles(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str | None:
    """None, or why not."""
    if w.shape[2:] != (3, 3) or {*_pair(stride), *_pair(dilation)} != {1}:
        return "only windows of 3 x 3, with stride and dilation 1, are computed by tiles"
    if min(w.shape[:2]) < LEAST:
        return f"tiles do not pay below {LEAST} channels"
    return _supports(x, w, bias, padding=padding, groups=groups)


def _supports_matrix(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str | None:
    """None, or why not."""
    if not _AMX and {*_pair(stride), *_pair(dilation)} != {1}:
        return "windows of other strides and dilations than 1 are computed by tiles of AMX alone"
    least = LEAST if {*_pair(stride), *_pair(dilation)} == {1} else 2 * LEAST
    if min(w.shape[:2]) < least:
        return f"tiles of matrices do not pay below {least} channels"
    return _supports(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def prepare(w: Tensor) -> Prepared:
    """Pack a weight, unless it is small."""
    least = min(w.shape[:2])
    if least < LEAST or native().packed_filter_bytes(*_sizes(w)) > MOST * w.nbytes:
        return Prepared(None, 0, "as it is")
    return pack(w)


def _sizes(w: Tensor) -> tuple[int, int, int]:
    outputs, channels, *kernel = w.shape
    return outputs, channels, math.prod(kernel)


def pack(w: Tensor) -> Prepared:
    """The same elements as tiles of 16 by 32 for each tap."""
    sizes, threads = _sizes(w), w.device.threads
    tiles = lasting(native().packed_filter_bytes(*sizes))
    native().pack_filter(tiles, np.ascontiguousarray(w.array), *sizes, threads)

    def unpack(raw: np.ndarray) -> None:
        native().unpack_filter(raw, tiles, *sizes, threads)

    return packed(w, tiles, unpack, "packed as tiles")


def _convolve(
    out: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    attributes: tuple[Sizes, Sizes, Sizes],
    way: Way,
    tiles: object = None,
) -> None:
    x, w, bias = inputs
    native().conv2d(
        out.array,
        x.array,
        None if tiles is not None else w.array,
        tiles,
        None if bias is None else bias.array,
        KINDS[x.dtype],
        w.shape[0],
        *w.shape[2:],
        *(size for sizes in attributes for size in _pair(sizes)),
        out.device.threads,
        way,
    )


def _pair(sizes: Sizes) -> tuple[int, ...]:
    return spatial("conv2d", "size", sizes, 2, least=0)


def conv2d(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """Convolution over two dimensions, as a product with columns of pixels."""
    del groups
    _convolve(out, (x, w, bias), (stride, padding, dilation), Way.EXACT)


def conv2d_tiled(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """The same of windows of 3 x 3, by Winograd's transform of tiles of 4 x 4 pixels."""
    del groups
    _convolve(out, (x, w, bias), (stride, padding, dilation), Way.TILES)


def conv2d_matrix(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """The same as a product with columns of pixels, by tiles of matrices."""
    del groups
    tiles = w.prepared.get(prepare)
    _convolve(out, (x, w, bias), (stride, padding, dilation), Way.MATRIX, tiles)


OPS: Final = [
    matrix_implementation(
        "conv2d",
        conv2d_matrix,
        # Dot products of pairs halve the multiplications; Winograd's tiles leave a quarter.
        priority=Priority.GENERIC + (20 if _AMX else 5),
        supports=_supports_matrix,
        prepare=prepare,
    ),
    implementation(
        "conv2d",
        conv2d_tiled,
        variant="tiled",
        priority=Priority.GENERIC + 10,
        supports=_supports_tiles,
        exact=False,
        notes="Winograd's transform of tiles of 4 x 4 pixels, in f32",
    ),
    implementation("conv2d", conv2d, supports=_supports),
]
