"""What the implementations have in common."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import OpImpl
from propolis import Prepared
from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

MANY: Final = 32
"""Rows and queries from which tiles of matrices pay: for fewer nothing is packed."""


def implementation(op: str, fn: Callable[..., None], **more: Any) -> OpImpl:
    """An implementation by a kernel, which a plan may keep."""
    return OpImpl(
        **{
            "op": op,
            "fn": fn,
            "dtypes": FLOATS,
            "priority": Priority.GENERIC,
            "strided": False,
            "capture_safe": True,
            "record": record,
            **more,
        }
    )


def strided_implementation(op: str, fn: Callable[..., None], **more: Any) -> OpImpl:
    """One that takes inputs as they lie, before that for which core copies them."""
    return implementation(
        op, fn, **{"variant": "strided", "priority": Priority.GENERIC + 10, "strided": True, **more}
    )


def row_step(x: Tensor) -> int | None:
    """Elements from each row of the last dimension to the next; None where they vary."""
    *sizes, width = x.shape
    *strides, last = x.strides
    if last != 1 and width > 1:
        return None
    step, after = width, None  # of what a row of rows must lie apart, to go on at one distance
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if after is None:
            step = stride
        elif stride != after:
            return None
        after = stride * size
    return step


def packed(
    w: Tensor, tiles: np.ndarray, unpack: Callable[[np.ndarray], None], what: str
) -> Prepared:
    """What ``prepare`` gives of a weight that lies in tiles alone; ``unpack`` writes its bytes."""
    device, shape, dtype = w.device, w.shape, w.dtype  # not ``w``, which is let go of

    def restore() -> Tensor:
        raw = np.empty(dtype.nbytes(math.prod(shape)), np.uint8)
        unpack(raw)
        return Tensor.from_blocks(raw, dtype, shape, device)

    return Prepared(tiles, tiles.nbytes, what, restore)


def matrix_implementation(op: str, fn: Callable[..., None], **more: Any) -> OpImpl:
    """One in bf16 by instructions for that, which take what is denormal for 0."""
    found = matrix_instructions()
    return implementation(
        op,
        fn,
        **{
            "variant": "matrix",
            "priority": Priority.GENERIC + 20,
            "dtypes": {dtypes.bf16},
            "exact": False,
            "notes": f"by {found or 'AVX512_BF16'}; what is denormal is 0, shares of keys are bf16",
            "unusable": "" if found else "no instructions for bf16: neither AVX512_BF16 nor AMX",
            **more,
        },
    )


def record(calls: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """One call that does what all of these do; None where one of them is no kernel's."""
    module = native()
    plan = module.record(calls)
    if plan is None:
        return None
    replay = module.replay
    return lambda: replay(plan)
