"""Launches of elementwise kernels: contiguous or strided, in blocks of the right number."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import OpImpl
from propolis import Priority
from propolis_rocm_kernels._kernels import BLOCK
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._layouts import walk


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis_rocm_kernels._kernels import Kernel
    from propolis_rocm_kernels._kernels import Module


def pointer(tensor: Tensor) -> int:
    """The device address of the first element, of a plain dtype."""
    return tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes


def blocks_for(numel: int, per_thread: int) -> int:
    """Blocks that cover ``numel`` elements, or as many as a launch should have."""
    return min(-(-numel // (BLOCK * per_thread)), MAX_BLOCKS)


class Elementwise:
    """
    The contiguous and the strided kernel of one formula at one dtype.

    Args:
        module: where they are.
        name: the contiguous kernel's; the strided one's ends in ``_strided``.
        inputs: how many tensors it reads.
        largest: bytes of the largest element it reads or writes.
        heavy: the formula is long: fewer elements at once (``pack_of`` of the header).
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
        heavy: bool,
        scalars: str = "",
    ) -> None:
        letters = "P" * (1 + inputs) + "q" + scalars
        self._contiguous: Kernel = module.kernel(name, letters)
        self._strided: Kernel = module.kernel(f"{name}_strided", f"{letters}{inputs}")
        self._pack = min(16 // largest, 8 if heavy else 16)
        # What a thread has at least, and in large tensors: see ``map`` of the header.
        self._unrolled = self._pack * (1 if heavy else 2)
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
                self._walk(out, inputs, scalars)
                return
            pointers.append(pointer(x))
        blocks = blocks_for(numel, self._unrolled)
        device: Any = out.device
        enough = 16 * device.compute_units
        if blocks > enough:
            blocks = max(enough, -(-blocks // self._turns))
        self._contiguous(out.device, blocks, *pointers, numel, *scalars)

    def _walk(self, out: Tensor, inputs: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> None:
        layouts = [x.layout for x in inputs]
        views = [(view.shape, view.strides) for view in layouts]
        packed, numel, run, starts = walk(out.layout.shape, *views)
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


def record(
    name: str,
    fn: Callable[..., None],
    kinds: Collection[DType] | Mapping[str, Collection[DType]],
    *,
    in_place: bool = True,
    workspace: int | None = None,
) -> OpImpl:
    """How this plugin does an op of this kind: at any strides, and within a captured step."""
    fn.__name__ = fn.__qualname__ = name
    return OpImpl(
        op=name,
        fn=fn,
        device="rocm",
        dtypes=kinds,
        priority=Priority.GENERIC,
        capture_safe=True,
        in_place=in_place,
        workspace=workspace,
    )
