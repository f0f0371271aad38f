"""
The CPU rung of the ladder: run one call on the CPU, with copies, and never silently.

Every call that ends here is counted; the first of each (op, reason) is a log line;
the policy may forbid it, and a budget may limit it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal

import numpy as np

from propolis import events
from propolis.errors import FallbackError
from propolis.layout import Layout
from propolis.storage import CpuStorage
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.call import Call
    from propolis.tensor import Device


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


def traffic(call: Call, cpu: Device) -> int:
    """Bytes that a call copies to run on the CPU, there and back."""
    there = (tensor for tensor in call.read if tensor.device is not cpu)
    return sum(map(_nbytes_reached, there)) + sum(map(_nbytes_reached, call.written))


class Mirrored:
    """
    One call on the CPU, over host copies of its tensors; made once, run any number of times.

    Mirrors have their tensors' strides, over the bytes that those reach.
    """

    def __init__(
        self,
        call: Call,
        cpu: Device,
        run: Callable[..., None],
        buffer: Callable[[int, int], np.ndarray] | None = None,
    ) -> None:
        """
        Make the mirrors.

        Args:
            call: the call.
            cpu: the CPU.
            run: what serves the op there.
            buffer: gives host memory for the mirror of that number and size; None for
                fresh memory.
        """
        self._cpu = cpu
        self._buffer = buffer or (lambda _number, nbytes: np.empty(nbytes, np.uint8))
        self._pairs: list[tuple[Tensor, np.ndarray]] = []
        host = [self._mirror(value) for value in call.args]
        there = {name: self._mirror(value) for name, value in call.attributes.items()}
        self._run: Callable[[], None] = partial(run, *host, **there)
        # Of destinations that are rewritten whole, nothing is read.
        self._read = self._pairs[len(call.outputs) :]
        # What the op mutates comes first: outputs may lie between its elements.
        self._written = self._pairs[: len(call.written)][::-1]

    def __call__(self) -> None:
        """Copy the inputs there, run, and copy the results back."""
        for tensor, raw in self._read:
            tensor.device.copy_out(raw, tensor.storage, _start(tensor))
        self._run()
        for tensor, raw in self._written:  # by the call, not by the host: a replay does it again
            device = tensor.device
            device.guarded(device.memory.copy_in, tensor.storage, _start(tensor), raw)

    def _mirror(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device is self._cpu:
            return value
        raw = self._buffer(len(self._pairs), _nbytes_reached(value))
        self._pairs.append((value, raw))
        layout = Layout(value.layout.shape, value.layout.strides)
        return Tensor(CpuStorage(raw), layout, value.dtype, self._cpu)


def _start(tensor: Tensor) -> int:
    return tensor.dtype.nbytes(tensor.layout.offset)


def _nbytes_reached(tensor: Tensor) -> int:
    """Bytes from the first element that the layout reaches to the last; whole blocks."""
    layout, dtype = tensor.layout, tensor.dtype
    return dtype.nbytes(layout.extent) - _start(tensor)
