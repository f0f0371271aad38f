"""Convolutions of rows and images on matrix instructions, which go before those of ``ops_conv``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import Prepared
from propolis import Priority
from propolis.layout import row_major
from propolis.ops.conv import conv_sizes
from propolis_rocm_hip.space import Spare
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._convolution import convolution
from propolis_rocm_kernels._convolution import too_far
from propolis_rocm_kernels._convolve import FEW
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import collapse
from propolis_rocm_kernels._product import launch
from propolis_rocm_kernels._product import tiles
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels.ops_matmul_matrix import MATRIX
from propolis_rocm_kernels.ops_matmul_matrix import TILES
from propolis_rocm_kernels.ops_matmul_matrix import bytes_of
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_matmul_matrix import rates
from propolis_rocm_kernels.ops_matmul_matrix import stages_for


if TYPE_CHECKING:
    from propolis import OpImpl
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis.ops.conv import Sizes
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._convolution import Attributes
    from propolis_rocm_kernels._convolution import Convolution

MODULE: Final = Module("conv_matrix")

_TURNED: Final = MODULE.constant("TURNED", 64)
"""Channels, and places, of an image that a block turns."""

_SHAPE: Final = Structure(
    "ConvTiles",
    {
        "bias": "q",
        **dict.fromkeys(("outs", "windows", "all", "columns", "channels", "steps"), "i"),
        **dict.fromkeys(("size", "kernel", "stride", "dilation"), "2i"),
    },
)
_IMAGES: Final = Structure(
    "ConvImages",
    {
        "strides": "4q",
        "blocks": "q",
        "channels": "i",
        "size": "2i",
        "padding": "2i",
        "packs": "i",
    },
)
_WEIGHTS: Final = Structure(
    "ConvWeights",
    {"strides": "4q", **dict.fromkeys(("outs", "channels", "rows", "columns"), "i")},
)
_MORE: Final = {(128, 192, 64): 1.15}
"""Tiles of devices with more shared memory than AMD's, beside those of plain products."""

_SIZE: Final = 2  # bytes of an element
_SUM: Final = 4  # and of a sum
_KERNELS: Final = {
    (d, tile): MODULE.kernel(f"{'x'.join(map(str, tile))}_{d.name}", ("PPPPP", _SHAPE, "qq"))
    for d in MATRIX
    for tile in (*TILES, *_MORE)
}
_JOINS: Final = {
    (d, count): MODULE.kernel(f"join{count}_{d.name}", "PPP" + 5 * "q")
    for d in MATRIX
    for count in (1, 4)
}
_TURN_IMAGES: Final = MODULE.kernel("images", ("PP", _IMAGES, "q"))
_TURN_WEIGHTS: Final = MODULE.kernel("weights", ("PP", _WEIGHTS))

_FILLING: Final = 192
"""Depth that a tile could have had in the time that it takes to begin and to end."""

_JOINING: Final = 0.05
"""
Time of a sum that is written and read again, where that of a tile 64 deep takes 1; and of a launch,
in such sums: measured on an H200.
"""
_LAUNCHING: Final = 40_000

_FARTHEST: Final = (1 << 31) - (1 << 20)
_MOST_PADDING: Final = 8
_ROOM: Final = 128 << 20
"""Bytes of images that are turned at a time, where one is not more."""

_ALIGNED: Final = 256  # bytes, that each part of the memory begins at a multiple of


class _Split(NamedTuple):
    """Tiles of a product, and parts of its depth, of so many steps."""

    tile: tuple[int, int, int]
    stages: int
    parts: int
    steps: int


@lru_cache(maxsize=4096)
def split_for(outs: int, windows: int, depth: int, units: int, most: int) -> _Split:
    """
    The tiles and parts that take the least time: rounds of all compute units, each of one tile.

    Args:
        outs: output channels.
        windows: of all images.
        depth: channels times taps.
        units: compute units of the device.
        most: shared memory of a block, in bytes.

    >>> split_for(320, 8192, 2880, 132, 232448)[::2]
    ((128, 256, 64), 1)
    >>> split_for(1280, 128, 23040, 132, 232448)[::2]
    ((128, 128, 64), 13)
    """
    found: dict[_Split, float] = {}
    for tile, rate in rates(most, _MORE).items():
        sums, blocks = tile[0] * tile[1], tiles(tile[:2], outs, windows)
        whole = math.ceil(depth / tile[2])
        for wanted in range(1, min(whole, max(1, 4 * units // blocks)) + 1):
            steps = math.ceil(whole / wanted)
            split = _Split(tile, stages_for(tile, most), math.ceil(whole / steps), steps)
            rounds = math.ceil(blocks * split.parts / units)
            found[split] = rounds * sums / rate * (steps * tile[2] + _FILLING) / 64
            if split.parts > 1:
                found[split] += split.parts * outs * windows * _JOINING + _LAUNCHING
    return min(found, key=found.__getitem__)


class Turned(Spare):
    """Images with their channels last, weights that nobody prepared, and sums of parts."""

    holds = "images with their channels last"


class _Plan(NamedTuple):
    """
    All of a convolution but the addresses.

    Attributes:
        c: as numbers.
        split: tiles and parts.
        channels: of an image, with those that make up whole packs.
        padded: sizes of an image with its padding.
        sizes: bytes of images and weights with their channels last, and of the sums of parts.
        in_packs: whether eight places of an image are read at once.
    """

    c: Convolution
    split: _Split
    channels: int
    padded: Shape
    sizes: tuple[int, int, int]
    in_packs: bool


@lru_cache(maxsize=4096)
def _plan(c: Convolution, offset: int, units: int, most: int) -> _Plan:
    channels, padded = _whole(c.channels, RUN), _padded(c)
    windows = c.windows * c.images
    depth = channels * math.prod(c.kernel)
    split = split_for(c.outs, windows, depth, units, most)
    [(size, step), *more] = collapse(c.size, (c.x[2:],))
    image = c.x[0] if c.images > 1 else 0
    channel = c.x[1] if c.channels > 1 else 0
    return _Plan(
        *(c, split, channels, padded),
        (
            _whole(c.images * math.prod(padded) * channels * _SIZE, _ALIGNED),
            _whole(c.outs * depth * _SIZE, _ALIGNED),
            split.parts * c.outs * windows * _SUM if split.parts > 1 else 0,
        ),
        not more and step == 1 and not any(n % RUN for n in (size, image, channel, offset)),
    )


def _whole(size: int, of: int) -> int:
    return -(-size // of) * of


def _padded(c: Convolution) -> Shape:
    return tuple(n + 2 * p for n, p in zip(c.size, c.padding, strict=True))


def _convolution(
    out: Shape, x: Tensor, w: Shape, attributes: tuple[Sizes, Sizes, Sizes]
) -> Convolution:
    """Whatever the strides of the weight: it may have no memory any more."""
    said = tuple(n if isinstance(n, int) else tuple(n) for n in attributes)
    views = (x.shape, x.strides), (w, row_major(w))
    return convolution(out, *views, cast("Attributes", said), 1, transposed=False)


def _convolve(
    out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, attributes: tuple[Sizes, Sizes, Sizes]
) -> None:
    if out.numel == 0:
        return
    count = _together(x, attributes[1])
    if x.shape[0] <= count:
        _convolve_some(out, x, w, bias, attributes)
        return
    for first in range(0, x.shape[0], count):
        some = first, min(count, x.shape[0] - first)
        _convolve_some(out.narrow(0, *some), x.narrow(0, *some), w, bias, attributes)


def _together(x: Tensor, padding: Sizes) -> int:
    """How many images have room with their channels last, at least one."""
    pads = (padding,) * len(x.shape[2:]) if isinstance(padding, int) else padding
    places = math.prod(n + 2 * p for n, p in zip(x.shape[2:], pads, strict=True))
    return max(1, _ROOM // (places * _whole(x.shape[1], RUN) * _SIZE))


def _convolve_some(
    out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, attributes: tuple[Sizes, Sizes, Sizes]
) -> None:
    device = cast("RocmDevice", out.device)
    c = _convolution(out.shape, x, w.shape, attributes)
    plan = _plan(c, x.layout.offset, device.compute_units, device.hardware.shared_bytes)
    ready = cast("Tensor | None", w.prepared.get(prepare))
    images, weights, sums = plan.sizes
    with device.keep(Turned).lent(device, images + sums + (0 if ready else weights)) as memory:
        sums_at = memory.ptr + images
        weights_at = sums_at + sums if ready is None else ready.ptr
        if ready is None:
            _turn_weights(device, weights_at, w)
        _turn_images(device, memory.ptr, x, plan)
        _multiply(out, (memory.ptr, weights_at, sums_at), bias, plan)


def _multiply(out: Tensor, places: tuple[int, int, int], bias: Tensor | None, plan: _Plan) -> None:
    images, weights, sums = places
    c, split, device = plan.c, plan.split, cast("RocmDevice", out.device)
    bias_at, step = (0, 0) if bias is None else (pointer(bias), bias.strides[0])
    windows = c.windows * c.images
    shape = c.outs, c.windows, windows, c.out[-1], plan.channels, split.steps
    spatial = (n for sizes in (plan.padded, c.kernel, c.stride, c.dilation) for n in sizes)
    parts = sums if split.parts > 1 else 0
    launch(
        _KERNELS[out.dtype, split.tile],
        device,
        tiles(split.tile[:2], c.outs, windows) * split.parts,
        (pointer(out), parts, images, weights, bias_at, step, *shape, *spatial),
        (split.stages,),
        shared=bytes_of(split.tile) * split.stages,
    )
    if parts:
        count = 1 if c.windows % 4 or pointer(out) % (4 * _SIZE) else 4
        blocks = -(-out.numel // (BLOCK * count))
        sizes = c.outs, c.windows, windows, split.parts
        _JOINS[out.dtype, count](device, blocks, pointer(out), parts, bias_at, step, *sizes)


def _turn_images(device: RocmDevice, to: int, x: Tensor, plan: _Plan) -> None:
    c, places = plan.c, math.prod(plan.c.size)
    inside = c.images * -(-places // _TURNED)
    around = c.images * -(-(math.prod(plan.padded) - places) // _TURNED)
    blocks = (inside + around) * -(-c.channels // _TURNED)
    shape = *c.x, inside, c.channels, *c.size, *c.padding, int(plan.in_packs)
    launch(_TURN_IMAGES, device, blocks, (to, pointer(x), *shape), ())


def _turn_weights(device: RocmDevice, to: int, w: Tensor) -> None:
    outs, channels, *kernel = w.shape
    rows, columns = (1, *kernel)[-2:]
    strides = *w.strides[:2], *(0, *w.strides[2:])[-2:]
    blocks = -(-outs * rows * columns * -(-channels // RUN) // BLOCK)
    _TURN_WEIGHTS(device, blocks, to, pointer(w), *strides, outs, channels, rows, columns)


def prepare(w: Tensor) -> Prepared:
    """
    The weight with its channels last; it is let go of itself.

    Those whose calls go to others stay: of few output channels, of one tap, of one channel (as
    depthwise convolutions have), and all where there are no matrix instructions.
    """
    outs, channels, *kernel = w.shape
    device = cast("RocmDevice", w.device)
    declined = outs <= FEW or channels <= 1 or math.prod(kernel) <= 1
    if declined or not has_instructions(device.properties.arch, w.dtype):
        return Prepared(None, 0, "as it is")
    ready = device.empty((outs, *kernel, _whole(channels, RUN)), w.dtype)
    _turn_weights(device, ready.ptr, w)
    rank = len(kernel)

    def restore() -> Tensor:
        whole = ready.narrow(rank + 1, 0, channels)
        return whole.permute(0, rank + 1, *range(1, rank + 1)).contiguous()

    return Prepared(ready, ready.nbytes, "with channels last", restore)


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
    del bias
    attributes = stride, padding, dilation
    arch = cast("RocmDevice", x.device).properties.arch
    if not has_instructions(arch, x.dtype):
        return f"{arch} has no matrix instructions that take all numbers of {x.dtype}"
    if groups != 1:
        return "there are groups of channels"
    if w.shape[0] <= FEW:
        return f"{w.shape[0]} output channels would leave tiles nearly empty (from {FEW + 1} on)"
    if not w.numel or not math.prod(x.shape[2:]):
        return "sums of nothing are for others"
    if (reason := too_far(x.shape, w.shape, attributes, transposed=False)) is not None:
        return reason
    c = _of(x, w, attributes)
    if c.x_step is not None:
        return "one tap that sees each place is a plain product"
    return _too_large(c)


def _of(x: Tensor, w: Tensor, attributes: tuple[Sizes, Sizes, Sizes]) -> Convolution:
    sizes = conv_sizes("conv", x.shape[2:], w.shape[2:], *attributes)
    return _convolution((x.shape[0], w.shape[0], *sizes), x, w.shape, attributes)


def _too_large(c: Convolution) -> str | None:
    """What lies around images is written and read, and elements are counted in 32 bits."""
    places, padded = math.prod(c.size), math.prod(_padded(c))
    if padded > _MOST_PADDING * (places + _TURNED * _TURNED):
        return f"{padded} places with their padding, of {places}: taken to {_MOST_PADDING} times"
    channels = _whole(c.channels, RUN)
    elements = c.images * channels * padded, c.outs * channels * math.prod(c.kernel)
    largest = max(*elements, c.outs, c.images * c.windows)
    return None if largest < _FARTHEST else f"{largest} elements, counted to {_FARTHEST}"


def _workspace(
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> int:
    del bias, groups
    some = x.narrow(0, 0, min(x.shape[0], _together(x, padding))) if x.numel else x
    c = _of(some, w, (stride, padding, dilation))
    if not c.images * c.windows:
        return 0
    device = cast("RocmDevice", x.device)
    plan = _plan(c, x.layout.offset, device.compute_units, device.hardware.shared_bytes)
    images, weights, sums = plan.sizes
    return space_bytes(images + sums + (0 if w.prepared.get(prepare) else weights))


def _implementation(name: str) -> OpImpl:
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
        del groups
        _convolve(out, x, w, bias, (stride, padding, dilation))

    return implementation(
        name,
        run,
        MATRIX,
        in_place=False,
        variant="matrix",
        priority=Priority.GENERIC + 10,
        supports=_supports,
        prepare=prepare,
        workspace=_workspace,
        notes="on matrix instructions, images with their channels last, sums in f32",
    )


OPS: Final = [_implementation("conv1d"), _implementation("conv2d")]
