"""
The CPU rung of the ladder: run one call on the CPU, with copies, and never silently.

Every call that ends here is counted; the first of each (op, reason) is a log line;
the policy may forbid it.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal

import numpy as np

from propolis.errors import FallbackError
from propolis.layout import Layout
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.device import Device
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec


Policy = Literal["allow", "warn", "error"]


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
        tallies: by (op, reason).
    """

    policy: Policy = "warn"
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def admit(self, op: str, device: str, reason: str) -> Tally:
        """
        Count a call that is about to run on the CPU.

        Raises:
            FallbackError: the policy is ``error``.
        """
        if self.policy == "error":
            msg = (
                f"{op}: would run on the cpu instead of {device} ({reason}) and fallback is "
                f"'error': install a plugin that serves it, or set fallback to 'warn' or 'allow'"
            )
            raise FallbackError(msg)
        tally = self.tallies.get((op, reason))
        if tally is None:
            tally = self.tallies[op, reason] = Tally()
            if self.policy == "warn":
                from propolis.log import get_logger  # noqa: PLC0415  (structlog only when needed)

                get_logger().warning("op.fallback", op=op, device=device, to="cpu", reason=reason)
        tally.calls += 1
        return tally


def run_on_cpu(
    spec: OpSpec,
    key: Key,
    cpu: Device,
    tally: Tally,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """
    Run one call, destinations first, on host copies of its tensors; copy the results back.

    Args:
        spec: the op.
        key: its dispatch key.
        cpu: the CPU, whose own table serves the op.
        tally: where the bytes copied are counted.
        args: destinations and arguments, as implementations receive them.
        kwargs: the keyword arguments.
    """
    copy = _Mirror(cpu, tally)
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
        tally.nbytes += raw.nbytes


class _Mirror:
    """Makes host tensors with the same layout over a copy of the bytes a tensor reaches."""

    def __init__(self, cpu: Device, tally: Tally) -> None:
        self.cpu = cpu
        self.tally = tally

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device is self.cpu:
            return value
        from propolis.cpu import CpuStorage  # noqa: PLC0415

        layout, dtype = value.layout, value.dtype
        start = dtype.nbytes(layout.offset)
        raw = np.empty(_nbytes_reached(value), np.uint8)
        value.device.memory.copy_out(raw, value.storage, start)
        self.tally.nbytes += raw.nbytes
        return Tensor(CpuStorage(raw), Layout(layout.shape, layout.strides), dtype, self.cpu)


def _nbytes_reached(tensor: Tensor) -> int:
    """Bytes from the first element that the layout reaches to the last; whole blocks."""
    layout, dtype = tensor.layout, tensor.dtype
    return dtype.nbytes(layout.extent) - dtype.nbytes(layout.offset)
