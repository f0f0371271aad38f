"""Launches of convolutions (native/propolis_convolve.h): which kernel, over how many blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import side_for
from propolis_rocm_kernels._product import tiles
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels.ops_matmul import over_channels


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis import OpImpl
    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis.ops.conv import Sizes
    from propolis_rocm_kernels._convolution import Attributes
    from propolis_rocm_kernels._convolution import Convolution
    from propolis_rocm_kernels._kernels import Kernel

SHAPE: Final = Structure(
    "ConvShape",
    {
        "x": "3q",
        "w": "4q",
        **dict.fromkeys(("bias", "depth", "outs"), "q"),
        **dict.fromkeys(("channels", "transposed"), "i"),
        **dict.fromkeys(("size", "out", "kernel", "stride", "padding", "dilation", "skip"), "2i"),
    },
)
PLANES: Final = Structure(
    "ConvPlanes",
    {
        **dict.fromkeys(("x", "w"), "q"),
        **dict.fromkeys(("size", "out", "kernel", "stride", "padding", "dilation"), "i"),
    },
)

LARGE: Final = dict.fromkeys((dtypes.f32, dtypes.f16, dtypes.bf16), (64, 128))
"""Sides of tiles, of dtypes that have more than those of 64."""

GATHERED: Final = 64
"""The side of tiles whose weights are gathered."""

FEW: Final = 16
"""Output channels of a group, up to which tiles would be nearly empty."""

_MOST_SLICES: Final = 32


@dataclass(frozen=True, eq=False)
class Kernels:
    """
    The kernels of images, or of videos.

    Attributes:
        tiles: of each dtype, by the side of a tile.
        direct: and by the most output channels that a thread has.
        gather: those for weights that are not rows; where there is none, others are computed
            directly.
    """

    tiles: Mapping[DType, Mapping[int, Kernel]]
    direct: Mapping[DType, Mapping[int, Kernel]]
    gather: Mapping[DType, Kernel]


class _Launch(NamedTuple):
    """All of a launch but the addresses."""

    kernel: Kernel
    blocks: int
    values: tuple[int, ...]
    rest: tuple[Any, ...]


@lru_cache(maxsize=4096)
def _plan(kernels: Kernels, c: Convolution, bias: int, dtype: DType, units: int) -> _Launch:
    """Which kernel, over how many blocks, on a device of so many compute units."""
    step, outs = c.w_step, c.outs
    lead = (c.images, c.groups, *c.planes)
    still = (0,) * len(c.planes)
    batches = strided_of(
        lead,
        (lead, (c.x[0], c.channels * c.x[1], *still)),
        (lead, (0, c.group, *still)),
        (lead, (0, outs * bias, *still)),
    )
    values = _values(c, bias, step)
    apart = batches.numel * c.phases
    if outs <= FEW or (step is None and not kernels.gather):
        each = (min if outs == 1 else max)(kernels.direct[dtype])
        rounds = apart * -(-outs // each)
        slices = slices_for(c.channels, rounds * c.windows, units)
        blocks = rounds * -(-c.windows // (BLOCK // slices))
        return _Launch(kernels.direct[dtype][each], blocks, values, (batches.packed, slices))
    if step is None:
        side, kernel = GATHERED, kernels.gather[dtype]
    else:
        side = side_for(kernels.tiles[dtype], units, outs, c.windows, batches.numel)
        kernel = kernels.tiles[dtype][side]
    return _Launch(kernel, apart * tiles(side, outs, c.windows), values, (batches.packed,))


def _values(c: Convolution, bias: int, w_step: int | None) -> tuple[int, ...]:
    """The fields of a ``ConvShape``, and of a ``ConvPlanes`` if there are planes."""
    spatial = c.size, c.out, c.kernel, c.stride, c.padding, c.dilation
    channels = c.channels * math.prod(c.kernel[:-2])
    *_, w_row, w_column = c.w
    return (
        *(c.x[1], *c.x[-2:]),
        *(c.w[0] if c.outs > 1 else 0, c.w[1], w_row, w_column if w_step is None else w_step),
        *(bias, c.channels * math.prod(c.kernel), c.outs, channels, int(c.transposed)),
        *(n for sizes in (*spatial, c.skip) for n in sizes[-2:]),
        *((c.x[2], c.w[2], *(sizes[0] for sizes in spatial)) if c.planes else ()),
    )


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


def convolve(
    kernels: Kernels,
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
    kernel, blocks, values, rest = _plan(kernels, c, steps, out.dtype, device.compute_units)
    # An image without elements is nothing but padding: whatever it is read from.
    addresses = pointer(out), pointer(x if x.numel else w), pointer(w)
    bias_at = 0 if bias is None else pointer(bias)
    launch(kernel, device, blocks, (*addresses, bias_at, *values), rest)


def convolution_op(name: str, kernels: Kernels) -> OpImpl:
    """A convolution that is not transposed, as core knows it."""

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
        attributes = stride, padding, dilation
        convolve(kernels, out, x, w, bias, attributes, groups, transposed=False)

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
