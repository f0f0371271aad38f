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
from propolis_rocm_kernels.ops_matmul_matrix import SUM_BYTES
from propolis_rocm_kernels.ops_matmul_matrix import TILES
from propolis_rocm_kernels.ops_matmul_matrix import Split
from propolis_rocm_kernels.ops_matmul_matrix import bytes_of
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions
from propolis_rocm_kernels.ops_matmul_matrix import room
from propolis_rocm_kernels.ops_matmul_matrix import split_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import OpImpl
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis.ops.conv import Sizes
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_kernels._convolution import Convolution

MODULE: Final = Module("conv_matrix")

_TURNED: Final = MODULE.constant("TURNED", 64)
"""Channels, and places, of an image that a block turns."""

_SHAPE: Final = Structure(
    "ConvTiles",
    {
        **dict.fromkeys(("bias", "plane"), "q"),
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
        **dict.fromkeys(("size", "before", "padded"), "2i"),
        "packs": "i",
    },
)
_WEIGHTS: Final = Structure(
    "ConvWeights",
    {"strides": "4q", **dict.fromkeys(("outs", "channels", "rows", "columns"), "i")},
)
_MORE: Final = (((128, 192, 64), 1.1),)
"""Tiles of devices with more shared memory than AMD's, beside those of plain products."""

_SIZE: Final = 2  # bytes of an element
_KERNELS: Final = {
    (d, tile): MODULE.kernel(f"{'x'.join(map(str, tile))}_{d.name}", ("PPPPP", _SHAPE, "qq"))
    for d in MATRIX
    for tile in (*TILES, *dict(_MORE))
}
_JOINS: Final = {
    (d, count): MODULE.kernel(f"join{count}_{d.name}", "PPP" + 6 * "q")
    for d in MATRIX
    for count in (1, 4)
}
_TURN_IMAGES: Final = MODULE.kernel("images", ("PP", _IMAGES, "q"))
_TURN_WEIGHTS: Final = MODULE.kernel("weights", ("PP", _WEIGHTS))

_FARTHEST: Final = (1 << 31) - (1 << 20)
_MOST_PADDING: Final = 8
_ROOM: Final = 100 << 20
"""Bytes of images that are turned at a time; more are done in pieces."""

_ALIGNED: Final = 256  # bytes, that each part of the memory begins at a multiple of


class Turned(Spare):
    """Images with their channels last, weights that nobody prepared, and sums of parts."""

    holds = "images with their channels last"


class _Plan(NamedTuple):
    """
    A piece of a convolution: some images, or some rows of the output of one.

    Attributes:
        split: tiles and parts.
        begins: elements of the input, and of the output, before the piece.
        sizes: bytes of images and weights with their channels last, and of the sums of parts.
        turning: blocks that turn images; the fields of ``ConvImages``.
        product: blocks of tiles; the fields of ``ConvTiles`` behind the bias.
        joining: the arguments of who joins parts, behind the bias.
        fours: whether four neighbouring outputs may be joined at once.
    """

    split: Split
    begins: tuple[int, int]
    sizes: tuple[int, int, int]
    turning: tuple[int, tuple[int, ...]]
    product: tuple[int, tuple[int, ...]]
    joining: tuple[int, ...]
    fours: bool


class _Given(NamedTuple):
    """A call without its tensors: how the input lies, what the weight is, attributes."""

    x: Shape
    strides: Shape
    offset: int
    w: Shape
    stride: Sizes
    padding: Sizes
    dilation: Sizes

    @classmethod
    def of(cls, x: Tensor, w: Tensor, attributes: tuple[Sizes, Sizes, Sizes]) -> _Given:
        """What is looked up by it."""
        said = (n if isinstance(n, int) else tuple(n) for n in attributes)
        return cls(x.shape, x.strides, x.layout.offset % RUN, w.shape, *said)

    def convolution(self) -> Convolution:
        """Whatever the strides of the weight: it may have no memory any more."""
        attributes = self.stride, self.padding, self.dilation
        sizes = conv_sizes("conv", self.x[2:], self.w[2:], *attributes)
        out = (self.x[0], self.w[0], *sizes)
        views = (self.x, self.strides), (self.w, row_major(self.w))
        return convolution(out, *views, attributes, 1, transposed=False)


def _pieces(c: Convolution) -> Iterator[tuple[int, int, int, int]]:
    """First image and how many, first row of the output and how many."""
    row = _padded(c, 1)[1] * _whole(c.channels, RUN) * _SIZE
    images = max(1, _ROOM // (row * _padded(c, c.out[-2])[0]))
    if images > 1 or row * _padded(c, c.out[-2])[0] <= _ROOM:
        for first in range(0, c.images, images):
            yield first, min(images, c.images - first), 0, c.out[-2]
        return
    rows = max(1, (_ROOM // row - _padded(c, 1)[0]) // c.stride[-2] + 1)
    rows = math.ceil(c.out[-2] / math.ceil(c.out[-2] / rows))
    for image in range(c.images):
        for first in range(0, c.out[-2], rows):
            yield image, 1, first, min(rows, c.out[-2] - first)


def _padded(c: Convolution, rows: int) -> tuple[int, int]:
    """Sizes of what so many rows of the output see, padding included."""
    height = (rows - 1) * c.stride[-2] + (c.kernel[-2] - 1) * c.dilation[-2] + 1
    return height, c.size[-1] + 2 * c.padding[-1]


@lru_cache(maxsize=4096)
def _plans(given: _Given, units: int, most: int) -> tuple[_Plan, ...]:
    c = given.convolution()
    if not c.images * c.windows:
        return ()
    return tuple(_plan(c, given.offset, units, most, *piece) for piece in _pieces(c))


def _plan(
    c: Convolution,
    offset: int,
    units: int,
    most: int,
    image: int,
    images: int,
    row: int,
    rows: int,
) -> _Plan:
    channels, padded = _whole(c.channels, RUN), _padded(c, rows)
    start = row * c.stride[0] - c.padding[0]
    first = min(max(start, 0), c.size[0])
    size = max(0, min(start + padded[0], c.size[0]) - first), c.size[1]
    before = first - start if size[0] else 0, c.padding[1]
    places, windows = math.prod(size), rows * c.out[1]
    depth = channels * math.prod(c.kernel)
    split = split_for(c.outs, images * windows, depth, units, most, more=_MORE)
    begin = image * c.x[0] + first * c.x[2]
    inside = images * -(-places // _TURNED)
    around = images * -(-(math.prod(padded) - places) // _TURNED)
    [(_, step), *more] = collapse(size, (c.x[2:],)) if places else [(0, 1)]
    strides = c.x[0] if images > 1 else 0, c.x[1] if c.channels > 1 else 0
    in_packs = (
        not more and step == 1 and not any(n % RUN for n in (places, *strides, offset + begin))
    )
    plane = c.out[0] * c.out[1]
    shape = plane, c.outs, windows, images * windows, c.out[1], channels, split.steps
    sums = split.parts * c.outs * images * windows * SUM_BYTES if split.parts > 1 else 0
    return _Plan(
        split,
        (begin, image * c.outs * plane + row * c.out[1]),
        (
            _whole(images * math.prod(padded) * channels * _SIZE, _ALIGNED),
            _whole(c.outs * depth * _SIZE, _ALIGNED),
            _whole(sums, _ALIGNED),
        ),
        (
            (inside + around) * -(-c.channels // _TURNED),
            (*c.x, inside, c.channels, *size, *before, *padded, int(in_packs)),
        ),
        (
            tiles(split.tile[:2], c.outs, images * windows) * split.parts,
            (*shape, *padded, *c.kernel, *c.stride, *c.dilation),
        ),
        (c.outs, windows, plane, images * windows, split.parts),
        fours=not windows % 4 and not plane % 4,
    )


def _whole(size: int, of: int) -> int:
    return -(-size // of) * of


def _convolve(
    out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, attributes: tuple[Sizes, Sizes, Sizes]
) -> None:
    if out.numel == 0:
        return
    device = cast("RocmDevice", out.device)
    given = _Given.of(x, w, attributes)
    plans = _plans(given, device.compute_units, room(device))
    ready = cast("Tensor | None", w.prepared.get(prepare))
    with device.keep(Turned).lent(device, _bytes(plans, prepared=ready is not None)) as memory:
        at = memory.ptr
        if ready is None:
            _turn_weights(device, at, w)
            at += plans[0].sizes[1]
        weights = memory.ptr if ready is None else ready.ptr
        for plan in plans:
            _multiply(out, x, bias, plan, (at, weights, at + plan.sizes[0]))


def _bytes(plans: tuple[_Plan, ...], *, prepared: bool) -> int:
    """Of the memory that pieces take turns to work in."""
    needed = max((images + sums for images, _, sums in (p.sizes for p in plans)), default=0)
    return needed if prepared or not plans else needed + plans[0].sizes[1]


def _multiply(
    out: Tensor, x: Tensor, bias: Tensor | None, plan: _Plan, places: tuple[int, int, int]
) -> None:
    images, weights, sums = places
    split, device = plan.split, cast("RocmDevice", out.device)
    x_at, to = (pointer(t) + n * _SIZE for t, n in zip((x, out), plan.begins, strict=True))
    bias_at, step = (0, 0) if bias is None else (pointer(bias), bias.strides[0])
    parts = sums if split.parts > 1 else 0
    blocks, fields = plan.turning
    launch(_TURN_IMAGES, device, blocks, (images, x_at, *fields), ())
    blocks, fields = plan.product
    launch(
        _KERNELS[out.dtype, split.tile],
        device,
        blocks,
        (to, parts, images, weights, bias_at, step, *fields),
        (split.stages,),
        shared=bytes_of(split.tile) * split.stages,
    )
    if parts:
        outs, _, _, windows, _ = plan.joining
        count = 4 if plan.fours and not to % (4 * _SIZE) else 1
        blocks = -(-outs * windows // (BLOCK * count))
        _JOINS[out.dtype, count](device, blocks, to, parts, bias_at, step, *plan.joining)


def _turn_weights(device: RocmDevice, to: int, w: Tensor) -> None:
    outs, channels, *kernel = w.shape
    rows, columns = (1, *kernel)[-2:]
    strides = *w.strides[:2], *(0, *w.strides[2:])[-2:]
    blocks = -(-outs * rows * columns * -(-channels // RUN) // BLOCK)
    _TURN_WEIGHTS(device, blocks, to, pointer(w), *strides, outs, channels, rows, columns)


def prepare(w: Tensor) -> Prepared:
    """
    The weight with its channels last; it is let go of itself.

    Some stay as they are: of one tap or one channel, which most calls with them are declined for,
    of few output channels, and all where there are no matrix instructions.
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
    arch = cast("RocmDevice", x.device).properties.arch
    if not has_instructions(arch, x.dtype):
        return f"{arch} has no matrix instructions that take all numbers of {x.dtype}"
    if groups != 1:
        return "there are groups of channels"
    return _declined(_Given.of(x, w, (stride, padding, dilation)))


@lru_cache(maxsize=4096)
def _declined(given: _Given) -> str | None:
    x, w = given.x, given.w
    if w[0] <= FEW:
        return f"{w[0]} output channels would leave tiles nearly empty (from {FEW + 1} on)"
    if not math.prod(w) or not math.prod(x[2:]):
        return "sums of nothing are for others"
    attributes = given.stride, given.padding, given.dilation
    if (reason := too_far(x, w, attributes, transposed=False)) is not None:
        return reason
    c = given.convolution()
    if c.x_step is not None:
        return "one tap that sees each place is a plain product"
    places, padded = math.prod(c.size), math.prod(_padded(c, c.out[-2]))
    if padded > _MOST_PADDING * (places + _TURNED * _TURNED):
        return f"{padded} places with their padding, of {places}: taken to {_MOST_PADDING} times"
    channels = _whole(c.channels, RUN)
    largest = c.outs * channels * math.prod(c.kernel)
    for _, images, _, rows in _pieces(c) if c.images else ():
        piece = images * channels * math.prod(_padded(c, rows)), images * rows * c.out[-1]
        largest = max(largest, *piece)
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
    device = cast("RocmDevice", x.device)
    given = _Given.of(x, w, (stride, padding, dilation))
    plans = _plans(given, device.compute_units, room(device))
    return space_bytes(_bytes(plans, prepared=w.prepared.get(prepare) is not None))


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
