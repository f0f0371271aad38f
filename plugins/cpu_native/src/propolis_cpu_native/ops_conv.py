"""Convolutions of images."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import Priority
from propolis.ops.conv import spatial
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
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


def _convolve(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    attributes: tuple[Sizes, Sizes, Sizes],
    *,
    exact: bool,
) -> None:
    native().conv2d(
        out.array,
        x.array,
        w.array,
        None if bias is None else bias.array,
        KINDS[x.dtype],
        *(size for sizes in attributes for size in _pair(sizes)),
        out.device.threads,
        exact,
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
    _convolve(out, x, w, bias, (stride, padding, dilation), exact=True)


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
    _convolve(out, x, w, bias, (stride, padding, dilation), exact=False)


OPS: Final = [
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
