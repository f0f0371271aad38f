"""How tensors are reduced: what native/propolis_reductions.h is launched with."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import Tensor
from propolis.layout import Layout
from propolis.ops.reduce import over
from propolis_rocm_hip.space import Space
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import BYTE_COLUMNS
from propolis_rocm_kernels._constants import COLUMN_LANES
from propolis_rocm_kernels._constants import COUNTERS
from propolis_rocm_kernels._constants import MAX_RANK
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._layouts import collapse
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._scratch import BYTES
from propolis_rocm_kernels._scratch import PARTIALS
from propolis_rocm_kernels._scratch import scratch
from propolis_rocm_kernels.ops_fill import copy


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis import OpImpl
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.ops.reduce import Dims
    from propolis_rocm_kernels._kernels import Kernel
    from propolis_rocm_kernels._kernels import Module

_SPLIT: Final = "PPPqqqqi11"
# Who reduces an output, as the last word of a kernel's name has it.
_WAYS: Final = {"warps": "PPqqq11", "blocks": _SPLIT, "columns": _SPLIT}
_FLOAT_WAYS: Final = {**_WAYS, "packs": _SPLIT}

_SHARERS: Final = BLOCK // COLUMN_LANES
# Elements that are worth a block of their own.
_WORTH: Final = 16384
# Bytes of an output that a warp reads alone.
_FEW: Final = 16384


class _Plan(NamedTuple):
    """How a tensor is reduced: see the arguments of the kernels."""

    way: str
    blocks: int | tuple[int, int, int]
    outputs: int
    n: int
    chunk: int
    splits: int
    kept: bytes
    inner: bytes
    offsets: tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def _plan(
    shape: Shape, strides: Shape, dims: Shape, dtype: DType, start: int, warp: int, units: int
) -> _Plan:
    """``start`` is what the first element's address is past a multiple of PACK_BYTES."""
    size = dtype.block_bytes
    reduced = _from_far_to_near(shape, strides, dims)
    rest = [d for d in range(len(shape)) if d not in dims]
    own = tuple(shape[d] for d in rest), tuple(strides[d] for d in rest)
    theirs = tuple(shape[d] for d in reduced), tuple(strides[d] for d in reduced)
    kept = strided_of(own[0], own)
    inner = strided_of(theirs[0], theirs)
    n = math.prod(theirs[0])
    outputs = kept.numel
    offsets = tuple((i * outputs, start) for i, (start,) in enumerate(kept.starts))
    wanted = 4 * units  # blocks that fill the device
    near, far = _innermost(*own), _innermost(*theirs)
    if near is not None and (far is None or near < far):
        pack = BYTE_COLUMNS if size == 1 else PACK_BYTES // size
        whole = near == 1 and kept.run >= pack and not any(s % pack for s in theirs[1])
        whole = whole and dtype.is_float and start % (pack * size) == 0 and len(offsets) == 1
        tiles = -(-outputs // (COLUMN_LANES * (pack if whole else 1)))
        most = min(PARTIALS // outputs, -(-n // (8 * _SHARERS)), -(-wanted // tiles))
        splits = max(1, most if tiles <= COUNTERS and tiles < wanted // 2 else 1)
        chunk = -(-n // splits)
        splits = max(1, -(-n // max(chunk, 1)))
        blocks = (min(tiles, MAX_BLOCKS), splits, 1)
        name = "packs" if whole else "columns"
        return _Plan(name, blocks, outputs, n, chunk, splits, kept.packed, inner.packed, offsets)
    if n * size <= _FEW and (outputs >= wanted or n <= 8 * warp):
        blocks_of = min(-(-outputs // (BLOCK // warp)), MAX_BLOCKS)
        return _Plan("warps", blocks_of, outputs, n, n, 1, kept.packed, inner.packed, offsets)
    most = min(PARTIALS // outputs, n // _WORTH, -(-wanted // outputs))
    splits = max(1, most if outputs <= COUNTERS and outputs < wanted // 2 else 1)
    chunk = -(-n // (splits * PACK_BYTES)) * PACK_BYTES if splits > 1 else n
    splits = max(1, -(-n // max(chunk, 1)))
    total = min(outputs * splits, MAX_BLOCKS)
    return _Plan("blocks", total, outputs, n, chunk, splits, kept.packed, inner.packed, offsets)


def _from_far_to_near(shape: Shape, strides: Shape, dims: Shape) -> list[int]:
    """Reduced dimensions, whose order is free, as they lie in memory: few are left of them then."""
    return sorted(dims, key=lambda d: -strides[d] if shape[d] > 1 and strides[d] else -math.inf)


def _copied_bytes(x: Tensor, dims: Shape) -> int:
    """Of a copy in rows, where more reduced dimensions are left than a kernel walks; else 0."""
    if len(dims) <= MAX_RANK:
        return 0
    order = _from_far_to_near(x.shape, x.strides, dims)
    left = collapse(tuple(x.shape[d] for d in order), (tuple(x.strides[d] for d in order),))
    return x.nbytes if len(left) > MAX_RANK else 0


def memory_of(x: Tensor, dims: Shape) -> int:
    """What a reduction over several dimensions works in, in bytes."""
    return BYTES + space_bytes(_copied_bytes(x, dims))


def _innermost(shape: Shape, strides: Shape) -> int | None:
    """The distance of neighbours; None where there is but one element, or they repeat."""
    steps = [abs(s) for n, s in zip(shape, strides, strict=True) if n > 1]
    return steps[-1] if steps and steps[-1] else None


class Reduction:
    """The kernels of one op."""

    def __init__(self, module: Module, name: str, kinds: Collection[DType]) -> None:
        self._kernels: dict[tuple[DType, str], Kernel] = {
            (d, way): module.kernel(f"{name}_{d.name}_{way}", letters)
            for d in kinds
            for way, letters in (_FLOAT_WAYS if d.is_float else _WAYS).items()
        }

    def __call__(self, out: Tensor, x: Tensor, dims: Shape, extra: int = 0) -> None:
        if out.layout.numel == 0:
            return
        layout, dtype = x.layout, x.dtype
        device: Any = out.device
        if nbytes := _copied_bytes(x, dims):
            with device.keep(Space).lent(device, nbytes) as memory:
                rows = Tensor(memory, Layout.contiguous(x.shape), dtype, device)
                copy(rows, x)
                self(out, rows, dims, extra)
            return
        size = dtype.block_bytes
        to, start, of_out = pointer(out), pointer(x), out.dtype.block_bytes
        units = device.compute_units
        plan = _plan(
            layout.shape, layout.strides, dims, dtype, start % PACK_BYTES, device.warp_size, units
        )
        kernel = self._kernels[dtype, plan.way]
        for first, second in plan.offsets:
            at = to + first * of_out, start + second * size
            numbers = plan.outputs, plan.n, extra
            if plan.way == "warps":
                kernel(device, plan.blocks, *at, *numbers, plan.kept, plan.inner)
                continue
            kernel(
                device,
                plan.blocks,
                *at,
                scratch(device) if plan.splits > 1 else 0,
                *numbers,
                plan.chunk,
                plan.splits,
                plan.kept,
                plan.inner,
            )


def over_dims(module: Module, name: str, kinds: Collection[DType]) -> OpImpl:
    """An op over any dimensions."""
    reduce = Reduction(module, name, kinds)

    def run(out: Tensor, x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> None:
        del keepdim  # the output has its shape
        reduce(out, x, over(name, x.layout.shape, dims))

    def workspace(x: Tensor, /, dims: Dims = None, *, keepdim: bool = False) -> int:
        del keepdim
        return memory_of(x, over(name, x.layout.shape, dims))

    return implementation(name, run, kinds, in_place=False, workspace=workspace)
