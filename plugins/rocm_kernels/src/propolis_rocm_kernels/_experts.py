"""Launches of products of tokens with the weights of their experts (native/propolis_experts.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._constants import COUNTERS
from propolis_rocm_kernels._constants import ROWS_OF_4
from propolis_rocm_kernels._constants import RUN
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._kernels import MAX_BLOCKS
from propolis_rocm_kernels._product import in_packs
from propolis_rocm_kernels._product import lanes_for
from propolis_rocm_kernels._scratch import BYTES
from propolis_rocm_kernels._scratch import scratch
from propolis_rocm_kernels._signature import Structure


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.layout import Shape
    from propolis_rocm_kernels._kernels import Kernel

SHAPE: Final = Structure(
    "ExpertShape",
    dict.fromkeys(
        (
            *("pairs", "choices", "experts", "n", "depth"),
            *("x_token", "x_choice", "x_step", "w_expert", "w_row", "w_step", "tiles", "first"),
        ),
        "q",
    ),
)

ROWS: Final = 4
"""Pairs of a tile where experts have few; otherwise it has SIDE."""

SIDE: Final = 64

MOST_EXPERTS: Final = 1 << 17

_NUMBERS: Final = (BYTES - COUNTERS * 4) // 4
# Pairs of a token and an expert that are grouped at a time: the rest is for the experts' starts.
_PAIRS: Final = _NUMBERS - MOST_EXPERTS - 2


def supports(x: Tensor, w: Tensor, experts: Tensor, /) -> str | None:
    """None, or why not: what no model has."""
    del x
    if w.shape[0] > MOST_EXPERTS or experts.shape[1] > _PAIRS:
        return f"{w.shape[0]} experts, {experts.shape[1]} of a token: too many"
    return None


def tiles_of(pairs: int, experts: int, side: int) -> int:
    """
    The most tiles of up to ``side`` pairs that there can be, each of one expert's.

    >>> tiles_of(8, 64, 4), tiles_of(1024, 8, 64)
    (8, 24)
    """
    used = min(experts + 1, pairs)
    return used + (pairs - used) // side


class Launch:
    """
    The products of one call.

    Args:
        group: the kernel that puts pairs in order.
        out, x, w, experts: the tensors.
        w_strides: of the weights, as the kernels count them.
    """

    def __init__(
        self,
        group: Kernel,
        out: Tensor,
        x: Tensor,
        w: Tensor,
        experts: Tensor,
        w_strides: Shape,
    ) -> None:
        self._group = group
        self._out, self._x, self._experts = out, x, experts
        self._count = w.shape[0]
        self._w_at, self._w_strides = w.ptr, w_strides
        token, choice, step = x.strides
        shared = x.shape[1] == 1
        self._depth = x.shape[2]
        self._steps = token, 0 if shared else choice, step if self._depth > 1 else 1

    def in_runs(self) -> bool:
        """Whether every run of activations may be loaded at once."""
        *strides, step = self._steps
        at, dtype = pointer(self._x), self._x.dtype
        whole = step == 1 and self._depth % RUN == 0
        return whole and all(in_packs(at, dtype, stride) for stride in strides)

    def few(self) -> bool:
        """Whether experts have but few tokens each, so that reading their weights is all."""
        return self._experts.numel <= ROWS * self._count

    def __call__(self, kernel: Kernel, side: int, rest: tuple[int, ...] = ()) -> None:
        """
        Queue the product in tiles of ``side`` pairs, in several parts where pairs are many.

        Args:
            kernel: its.
            side: ROWS or SIDE.
            rest: its last arguments.
        """
        out, x, experts = self._out, self._x, self._experts
        device: Any = out.device
        tokens, choices = experts.shape
        n, size = out.shape[2], out.dtype.block_bytes
        order = scratch(device) + COUNTERS * 4
        at_once = _PAIRS // choices
        for token in range(0, tokens, at_once):
            pairs = min(at_once, tokens - token) * choices
            starts = order + 4 * pairs
            ids = pointer(experts) + token * experts.strides[0] * experts.dtype.block_bytes
            steps = experts.strides
            blocks = self._count + 1
            self._group(device, blocks, order, starts, ids, pairs, choices, *steps, self._count)
            tiles = tiles_of(pairs, self._count, side)
            lanes: tuple[int, ...] = ()
            if side == ROWS:
                groups = -(-n // ROWS_OF_4) * tiles
                found = lanes_for(self._depth, groups, device.warp_size, device.compute_units)
                along, lanes = -(-n // (BLOCK // found * ROWS_OF_4)), (found,)
            else:
                along = -(-n // side)
            shape = pairs, choices, self._count, n, self._depth, *self._steps, *self._w_strides
            tensors = (
                pointer(out) + token * choices * n * size,
                pointer(x) + token * self._steps[0] * size,
                self._w_at,
            )
            for first in range(0, tiles * along, MAX_BLOCKS):
                count = min(tiles * along - first, MAX_BLOCKS)
                given = (*tensors, order, starts, *shape, tiles, first, *lanes, *rest)
                kernel(device, count, *given)
