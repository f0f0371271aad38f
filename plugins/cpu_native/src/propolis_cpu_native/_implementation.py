"""What the implementations have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import OpImpl
from propolis import Priority
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence


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


def record(calls: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    """One call that does what all of these do; None where one of them is no kernel's."""
    module = native()
    plan = module.record(calls)
    if plan is None:
        return None
    replay = module.replay
    return lambda: replay(plan)
