"""Convolutions and their transposes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._convolution import convolution
from propolis_rocm_kernels._convolution import too_far
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import side_for
from propolis_rocm_kernels._product import tiles
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels.ops_matmul import over_channels


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis.ops.conv import Sizes
    from propolis_rocm_kernels._convolution import Attributes
    from propolis_rocm_kernels._convolution import Convolution
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("conv")

_SHAPE: Final = Structure(
    "ConvShape",
    {
        "x": "3q",
        "w": "4q",
        **dict.fromkeys(("bias", "depth", "outs"), "q"),
        **dict.fromkeys(("channels", "transposed"), "i"),
        **dict.fromkeys(("size", "out", "kernel", "stride", "padding", "dilation", "skip"), "2i"),
    },
)
_LARGE: Final = dict.fromkeys((dtypes.f32, dtypes.f16, dtypes.bf16), (64, 128))
_TILES: Final = {
    d: {s: MODULE.kernel(f"tile{s}_{d.name}", ("PPPP", _SHAPE, "q3")) for s in _LARGE.get(d, (64,))}
    for d in dtypes.FLOATS
}
_SIDE: Final = 64
_GATHER: Final = {
    d: MODULE.kernel(f"gather{_SIDE}_{d.name}", ("PPPP", _SHAPE, "q3")) for d in dtypes.FLOATS
}
_DIRECT: Final = {
    (d, n): MODULE.kernel(f"direct{n}_{d.name}", ("PPPP", _SHAPE, "q3q"))
    for d in dtypes.FLOATS
    for n in (1, 4)
}

FEW: Final = 16
"""Output channels of a group, up to which tiles would be nearly empty."""

_MOST_SLICES: Final = 32


class _Launch(NamedTuple):
    """All of a launch but the addresses."""

    kernel: Kernel
    blocks: int
    values: tuple[int, ...]
    rest: tuple[Any, ...]


@lru_cache(maxsize=4096)
def _plan(c: Convolution, bias: int, dtype: DType, units: int) -> _Launch:
    """Which kernel, over how many blocks, on a device of so many compute units."""
    step, outs = c.w_step, c.outs
    lead = (c.images, c.groups)
    batches = strided_of(
        lead,
        (lead, (c.x[0], c.channels * c.x[1])),
        (lead, (0, c.group)),
        (lead, (0, outs * bias)),
    )
    values = (
        *c.x[1:],
        *(c.w[0] if outs > 1 else 0, *c.w[1:3], c.w[3] if step is None else step),
        *(bias, c.channels * c.kernel[0] * c.kernel[1], outs, c.channels, int(c.transposed)),
        *(*c.size, *c.out, *c.kernel, *c.stride, *c.padding, *c.dilation, *c.skip),
    )
    apart = batches.numel * c.phases
    if outs <= FEW:
        each = 1 if outs == 1 else 4
        rounds = apart * -(-outs // each)
        slices = slices_for(c.channels, rounds * c.windows, units)
        blocks = rounds * -(-c.windows // (BLOCK // slices))
        return _Launch(_DIRECT[dtype, each], blocks, values, (batches.packed, slices))
    if step is None:
        side, kernel = _SIDE, _GATHER[dtype]
    else:
        side = side_for(_TILES[dtype], units, outs, c.windows, batches.numel)
        kernel = _TILES[dtype][side]
    return _Launch(kernel, apart * tiles(side, outs, c.windows), values, (batches.packed,))


def slices_for(channels: int, threads: int, units: int) -> int:
    """
    How many threads share the channels of a window: 1 if windows are many.

    Args:
        channels: of a group.
        threads: without any that share.
        units: compute units of the device, that want two blocks each at least.

    >>> slices_for(320, 4096, 60), slices_for(1, 4096, 60)
    (8, 1)
    """
    slices = 1
    while slices < _MOST_SLICES and 2 * slices <= channels and threads * slices < 2 * units * BLOCK:
        slices *= 2
    return slices


def _convolve(
    out: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    attributes: Attributes,
    groups: int,
    *,
    transposed: bool,
) -> None:
    """The bias joins before the sum is rounded; transposed, each output gathers its inputs."""
    if out.numel == 0:
        return
    views = ((t.layout.shape, t.layout.strides) for t in (x, w))
    said = tuple(n if isinstance(n, int) else tuple(n) for n in attributes)
    c = convolution(out.shape, *views, said, groups, transposed=transposed)
    step = c.x_step
    if step is not None and c.outs > FEW:
        over_channels(out, x, w, bias, step, c.w[:2])
        return
    device: Any = out.device
    steps = 0 if bias is None else bias.strides[0]
    kernel, blocks, values, rest = _plan(c, steps, out.dtype, device.compute_units)
    # An image without elements is nothing but padding: whatever it is read from.
    addresses = pointer(out), pointer(x if x.numel else w), pointer(w)
    bias_at = 0 if bias is None else pointer(bias)
    launch(kernel, device, blocks, (*addresses, bias_at, *values), rest)


def _conv(name: str) -> OpImpl:
    def run(
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
        _convolve(out, x, w, bias, (stride, padding, dilation), groups, transposed=False)

    def supports(
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
        del bias, groups
        return too_far(x.shape, w.shape, (stride, padding, dilation), transposed=False)

    made = implementation(name, run, dtypes.FLOATS, in_place=False)
    return replace(made, supports=supports)


def _conv_transpose(name: str) -> OpImpl:
    def run(
        out: Tensor,
        x: Tensor,
        w: Tensor,
        /,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> None:
        del output_padding  # the shape of the output says it
        _convolve(out, x, w, bias, (stride, padding, dilation), groups, transposed=True)

    def supports(
        x: Tensor,
        w: Tensor,
        /,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> str | None:
        del bias, groups
        attributes = stride, padding, dilation
        return too_far(x.shape, w.shape, attributes, transposed=True, more=output_padding)

    made = implementation(name, run, dtypes.FLOATS, in_place=False)
    return replace(made, supports=supports)


OPS: Final = [
    _conv("conv1d"),
    _conv("conv2d"),
    _conv_transpose("conv_transpose1d"),
    _conv_transpose("conv_transpose2d"),
]
