"""Launches of elementwise kernels: contiguous or strided, in blocks of the right number."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import HEAVY_PACK
from propolis_rocm_kernels._constants import PACK_BYTES
from propolis_rocm_kernels._constants import UNROLLED
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._layouts import strided_of


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_kernels._kernels import Kernel
    from propolis_rocm_kernels._kernels import Module


def pointer(tensor: Tensor) -> int:
    """The device address of the first element, of a plain dtype."""
    return tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes


def blocks_for(numel: int, per_thread: int) -> int:
    """Blocks that cover ``numel`` elements, or as many as a launch should have."""
    return min(-(-numel // (BLOCK * per_thread)), MAX_BLOCKS)


def pack_of(largest: int, *, heavy: bool) -> int:
    """Elements of a pack, of which the largest has so many bytes: as the header's."""
    return min(PACK_BYTES // largest, HEAVY_PACK if heavy else PACK_BYTES)


class Elementwise:
    """
    The contiguous and the strided kernel of one formula at one dtype.

    Args:
        module: where they are.
        name: the contiguous kernel's; the strided one's ends in ``_strided``.
        inputs: how many tensors it reads.
        largest: bytes of the largest element it reads or writes.
        heavy: the formula is long: fewer elements at once.
        scalars: letters of further arguments, after the number of elements.
    """

    __slots__ = ("_contiguous", "_pack", "_strided", "_turns", "_unrolled")

    def __init__(
        self,
        module: Module,
        name: str,
        inputs: int,
        largest: int,
        *,
        heavy: bool = False,
        scalars: str = "",
    ) -> None:
        letters = "P" * (1 + inputs) + "q" + scalars
        self._contiguous: Kernel = module.kernel(name, letters)
        self._strided: Kernel = module.kernel(f"{name}_strided", f"{letters}{inputs}")
        self._pack = pack_of(largest, heavy=heavy)
        # What a thread has at least, and in large tensors: as ``map`` of propolis_elementwise.h.
        self._unrolled = self._pack * (1 if heavy else UNROLLED)
        self._turns = 4 if heavy and inputs == 1 else 1

    def __call__(self, out: Tensor, *inputs: Tensor, scalars: tuple[Any, ...] = ()) -> None:
        """Compute ``out``, contiguous, from inputs that broadcast to its shape."""
        layout = out.layout
        numel = layout.numel
        if numel == 0:
            return
        shape = layout.shape
        pointers = [pointer(out)]
        for x in inputs:
            view = x.layout
            if not view.is_contiguous or view.shape != shape:
                self._launch_strided(out, inputs, scalars)
                return
            pointers.append(pointer(x))
        blocks = blocks_for(numel, self._unrolled)
        device: Any = out.device
        enough = 16 * device.compute_units
        if blocks > enough:
            blocks = max(enough, -(-blocks // self._turns))
        self._contiguous(out.device, blocks, *pointers, numel, *scalars)

    def _launch_strided(
        self, out: Tensor, inputs: tuple[Tensor, ...], scalars: tuple[Any, ...]
    ) -> None:
        layouts = [x.layout for x in inputs]
        views = [(view.shape, view.strides) for view in layouts]
        packed, numel, run, starts = strided_of(out.layout.shape, *views)
        blocks = blocks_for(numel, self._pack if run >= self._pack else 1)
        target = pointer(out)
        step = numel * out.dtype.block_bytes
        for offsets in starts:
            pointers = [
                pointer(x) + offset * x.dtype.block_bytes
                for x, offset in zip(inputs, offsets, strict=True)
            ]
            self._strided(out.device, blocks, target, *pointers, numel, *scalars, packed)
            target += step
