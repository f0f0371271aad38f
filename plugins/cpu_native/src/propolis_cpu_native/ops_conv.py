"""Convolutions of images."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import Priority
from propolis.ops.conv import spatial
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import matrix_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.conv import Sizes

LEAST: Final = 16
"""Channels of input and output, from which on tiles cost less than they save."""


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
    if {*_pair(stride), *_pair(dilation)} != {1}:
        return "only windows of stride and dilation 1 are computed by tiles of matrices"
    if min(w.shape[:2]) < LEAST:
        return f"tiles of matrices do not pay below {LEAST} channels"
    return _supports(x, w, bias, padding=padding, groups=groups)


def _convolve(
    out: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    attributes: tuple[Sizes, Sizes, Sizes],
    way: Way,
) -> None:
    x, w, bias = inputs
    native().conv2d(
        out.array,
        x.array,
        w.array,
        None if bias is None else bias.array,
        KINDS[x.dtype],
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
    _convolve(out, (x, w, bias), (stride, padding, dilation), Way.MATRIX)


OPS: Final = [
    matrix_implementation(
        "conv2d",
        conv2d_matrix,
        # Dot products of pairs halve the multiplications; Winograd's tiles leave a quarter.
        priority=Priority.GENERIC + (20 if matrix_instructions() == "AMX" else 5),
        supports=_supports_matrix,
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
