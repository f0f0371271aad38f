"""
The CPU rung of the ladder: run one call on the CPU, with copies, and never silently.

Every call that ends here is counted; the first of each (op, reason) is a log line;
the policy may forbid it, and a budget may limit it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal

import numpy as np

from propolis import events
from propolis.errors import FallbackError
from propolis.layout import Layout
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.device import Device
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec


Policy = Literal["allow", "warn", "error"]

MAX_REASONS: Final = 8
"""Reasons of one op that are tallied and logged apart."""

OTHER_REASONS: Final = "other reasons"
"""The tally of an op's further reasons."""


@dataclass(slots=True)
class Tally:
    """How often an op fell to the CPU for one reason, and the bytes copied for it."""

    calls: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class FallbackLog:
    """
    What fell to the CPU in this process.

    Attributes:
        policy: ``allow`` counts, ``warn`` also logs (the default), ``error`` refuses.
        max_calls: calls that may fall, of all ops together; None for no limit.
        max_bytes: bytes that they may copy, all together; None for no limit.
        total: of all ops.
        tallies: by (op, reason).
    """

    policy: Policy = "warn"
    max_calls: int | None = None
    max_bytes: int | None = None
    total: Tally = field(default_factory=Tally)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def admit(self, op: str, device: str, reason: str, nbytes: int) -> None:
        """
        Count a call that is about to run on the CPU.

        Args:
            op: its name.
            device: where it would have run.
            reason: why it does not.
            nbytes: what it copies, there and back.

        Raises:
            FallbackError: the policy is ``error``, or the call exceeds the budget.
        """
        if self.policy == "error":
            msg = (
                f"{op}: would run on the cpu instead of {device} ({reason}) and fallback is "
                f"'error': install a plugin that serves it, or set fallback to 'warn' or 'allow'"
            )
            raise FallbackError(msg)
        with self._lock:
            self._expect_in_budget(op, device, reason, nbytes)
            tally, label, is_new = self._tally(op, reason)
            for counted in (tally, self.total):
                counted.calls += 1
                counted.nbytes += nbytes
        if is_new and self.policy == "warn":
            events.OP_FALLBACK.emit(op=op, device=device, to="cpu", reason=label)

    def _expect_in_budget(self, op: str, device: str, reason: str, nbytes: int) -> None:
        calls, copied = self.total.calls + 1, self.total.nbytes + nbytes
        over = []
        if self.max_calls is not None and calls > self.max_calls:
            over.append(f"calls: {calls} of {self.max_calls} (fallback_max_calls)")
        if self.max_bytes is not None and copied > self.max_bytes:
            over.append(f"bytes copied: {copied} of {self.max_bytes} (fallback_max_bytes)")
        if over:
            msg = (
                f"{op}: would run on the cpu instead of {device} ({reason}) over the fallback "
                f"budget, {' and '.join(over)}: install a plugin that serves it, or raise the limit"
            )
            raise FallbackError(msg)

    def _tally(self, op: str, reason: str) -> tuple[Tally, str, bool]:
        """Where a call is counted, under which reason, and whether that is a new one."""
        known = self.tallies.get((op, reason))
        if known is not None:
            return known, reason, False
        # A reason may hold a size: a growing sequence would give one a step.
        if sum(name == op for name, _ in self.tallies) >= MAX_REASONS:
            reason = OTHER_REASONS
        is_new = (op, reason) not in self.tallies
        return self.tallies.setdefault((op, reason), Tally()), reason, is_new


def traffic(spec: OpSpec, cpu: Device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that :func:`run_on_cpu` copies for a call, there and back."""
    read = (*args[spec.outputs :], *kwargs.values())
    there = (v for v in read if isinstance(v, Tensor) and v.device is not cpu)
    back = args[: max(spec.outputs, 1)]
    return sum(map(_nbytes_reached, there)) + sum(map(_nbytes_reached, back))


def run_on_cpu(
    spec: OpSpec,
    key: Key,
    cpu: Device,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """
    Run one call, destinations first, on host copies of its tensors; copy the results back.

    Args:
        spec: the op.
        key: its dispatch key.
        cpu: the CPU, whose own table serves the op.
        args: destinations and arguments, as implementations receive them.
        kwargs: the keyword arguments.
    """
    copy = _Mirror(cpu)
    # Of destinations that are rewritten whole, nothing is read.
    blank = [cpu.empty(out.shape, out.dtype) for out in args[: spec.outputs]]
    host_args = [*blank, *(copy(a) for a in args[spec.outputs :])]
    host_kwargs = {name: copy(a) for name, a in kwargs.items()}
    run: Callable[..., None] = cpu.table.bind(spec, key)
    run(*host_args, **host_kwargs)
    for target, result in zip(args[: max(spec.outputs, 1)], host_args, strict=False):
        raw = result.storage.bytes[: _nbytes_reached(target)]
        start = target.dtype.nbytes(target.layout.offset)
        target.device.memory.copy_in(target.storage, start, raw)


class _Mirror:
    """Makes host tensors with the same layout over a copy of the bytes a tensor reaches."""

    def __init__(self, cpu: Device) -> None:
        self.cpu = cpu

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device is self.cpu:
            return value
        from propolis.cpu import CpuStorage  # noqa: PLC0415

        layout, dtype = value.layout, value.dtype
        start = dtype.nbytes(layout.offset)
        raw = np.empty(_nbytes_reached(value), np.uint8)
        value.device.memory.copy_out(raw, value.storage, start)
        return Tensor(CpuStorage(raw), Layout(layout.shape, layout.strides), dtype, self.cpu)


def _nbytes_reached(tensor: Tensor) -> int:
    """Bytes from the first element that the layout reaches to the last; whole blocks."""
    layout, dtype = tensor.layout, tensor.dtype
    return dtype.nbytes(layout.extent) - dtype.nbytes(layout.offset)
