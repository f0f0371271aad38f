"""
The placement summary: what runs where, in lines that every worker prints.

Silent CPU execution is the complaint that users of every such system share, so
the summary is not optional and costs next to nothing: who runs calls is noted once, when it is
bound or has run the first.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from propolis.dispatch.quarantine import label_of


if TYPE_CHECKING:
    from propolis.dispatch.fallback import FallbackLog
    from propolis.dispatch.metrics import Metrics
    from propolis.opspec.spec import Key
    from propolis.records import OpImpl
    from propolis.tensor import Device
    from propolis.tensor import Tensor


@dataclass(slots=True)
class PreparedWeights:
    """Weights that one implementation prepared for one op in one way."""

    count: int = 0
    nbytes_before: int = 0
    nbytes_after: int = 0
    dtypes: set[str] = field(default_factory=set)


class Placement:
    """
    Who ran the calls of one device.

    Attributes:
        strided_copies: inputs copied because an implementation takes no strides.
        in_place_copies: inputs copied because they are the destination too.
    """

    def __init__(
        self, device: Device, fallbacks: FallbackLog, metrics: Metrics | None = None
    ) -> None:
        self.device = device
        self.fallbacks = fallbacks
        self.metrics = metrics
        self.strided_copies = 0
        self.in_place_copies = 0
        self._on_device: dict[str, set[tuple[Key, str, str]]] = {}
        self._taken_out: dict[tuple[str, str], str] = {}
        self._decomposed: dict[str, str] = {}
        self._on_cpu: dict[str, str] = {}
        self._weights: dict[tuple[str, str, str], PreparedWeights] = defaultdict(PreparedWeights)

    def served(self, op: str, key: Key, impl: OpImpl) -> None:
        """Note who ran a call, or runs whatever calls come."""
        self._on_device.setdefault(op, set()).add((key, str(impl.provenance), impl.variant))

    def decomposed(self, op: str, parts: str) -> None:
        """Note that an op was done with others."""
        self._decomposed[op] = parts

    def lacking(self, op: str, why: str) -> None:
        """Note that nobody has an op here, and why."""
        self._on_cpu[op] = why

    def taken_out(self, key: Key, impl: OpImpl, reason: str) -> None:
        """Note who serves an op no more, for these dtypes."""
        who = str(impl.provenance)
        self._on_device.get(impl.op, set()).discard((key, who, impl.variant))
        kinds = key if isinstance(key, tuple) else (key,)
        self._taken_out[label_of(impl, [kind.name for kind in kinds]), who] = reason

    def add_weight(self, impl: OpImpl, weight: Tensor, nbytes: int, what: str) -> None:
        """Note that an implementation prepared a weight: to so many bytes, and how."""
        self._weigh(impl, weight, nbytes, what, 1)

    def forget_weight(self, impl: OpImpl, weight: Tensor, nbytes: int, what: str) -> None:
        """Note that a weight is no longer prepared so."""
        self._weigh(impl, weight, nbytes, what, -1)

    def _weigh(self, impl: OpImpl, weight: Tensor, nbytes: int, what: str, count: int) -> None:
        if not nbytes:
            return  # it stays as it is
        where = impl.op, impl.provenance.plugin if impl.provenance else "?", what
        entry = self._weights[where]
        entry.count += count
        entry.nbytes_before += count * weight.nbytes
        entry.nbytes_after += count * nbytes
        entry.dtypes.add(weight.dtype.name)
        if not entry.count:
            del self._weights[where]

    @property
    def servers(self) -> list[str]:
        """Whose implementations serve ops on the device, in a fixed order."""
        served = self._servers()
        return sorted({who for op in served.keys() - self._on_cpu.keys() for who in served[op]})

    def _servers(self) -> dict[str, list[str]]:
        """Who serves each op on the device; of copies, which another thread may add to."""
        known = {op: {who for _, who, _ in tuple(by)} for op, by in list(self._on_device.items())}
        return {op: sorted(by) for op, by in sorted(known.items()) if by}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        known = self._on_device or self._decomposed or self._on_cpu or self.fallbacks.tallies
        return not (known or self._taken_out or self._weights)

    def lines(self) -> list[str]:
        """The summary for people."""
        served = self._servers().keys() | self._decomposed.keys()
        here = served - self._on_cpu.keys()
        fell = {op for op, _ in list(self.fallbacks.tallies)}
        total = len(served | self._on_cpu.keys() | fell)
        who = ", ".join(self.servers) or "nobody"
        lines = [f"placement: {len(here)} of {total} ops on {self.device.id} by {who}"]
        if self._decomposed:
            into = (f"{op} (into {parts})" for op, parts in sorted(self._decomposed.items()))
            lines.append(f"placement: decomposed: {', '.join(into)}")
        if self._on_cpu:
            ops = ", ".join(f"{op} ({why})" for op, why in sorted(self._on_cpu.items()))
            lines.append(f"placement: on the cpu instead: {ops}")
        for (label, plugin), why in sorted(self._taken_out.items()):
            lines.append(f"placement: taken out: {label} by {plugin}: {why}")
        for (op, plugin, what), entry in sorted(self._weights.items()):
            lines.append(
                f"weights: {entry.count} for {op} {what} by {plugin}: "
                f"{'+'.join(sorted(entry.dtypes))} {_mb(entry.nbytes_before)} -> "
                f"{_mb(entry.nbytes_after)}"
            )
        if self.strided_copies:
            lines.append(f"copies: {self.strided_copies} strided inputs made contiguous")
        if self.in_place_copies:
            lines.append(f"copies: {self.in_place_copies} inputs that were the destination too")
        for (op, reason), tally in sorted(self.fallbacks.tallies.items()):
            lines.append(
                f"fallback: {op} ran on the cpu {tally.calls} times, "
                f"{_mb(tally.nbytes)} copied ({reason})"
            )
        return [*lines, *_table(self._costs())]

    def _costs(self) -> list[dict[str, Any]]:
        if self.metrics is None:
            return []
        fell: dict[str, int] = defaultdict(int)
        for (op, _), tally in self.fallbacks.tallies.items():
            fell[op] += tally.calls
        return self.metrics.rows(fell)

    def as_dict(self) -> dict[str, Any]:
        """The summary for machines."""
        return {
            "device": self.device.id,
            "ops": self._servers(),
            "taken_out": [
                {"implementation": label, "plugin": plugin, "reason": why}
                for (label, plugin), why in sorted(self._taken_out.items())
            ],
            "decomposed": dict(sorted(self._decomposed.items())),
            "cpu_instead": dict(sorted(self._on_cpu.items())),
            "prepared_weights": [
                {
                    "op": op,
                    "plugin": plugin,
                    "what": what,
                    "count": entry.count,
                    "dtypes": sorted(entry.dtypes),
                    "nbytes_before": entry.nbytes_before,
                    "nbytes_after": entry.nbytes_after,
                }
                for (op, plugin, what), entry in sorted(self._weights.items())
            ],
            "strided_copies": self.strided_copies,
            "in_place_copies": self.in_place_copies,
            "fallbacks": [
                {"op": op, "reason": reason, "calls": tally.calls, "nbytes": tally.nbytes}
                for (op, reason), tally in sorted(self.fallbacks.tallies.items())
            ],
            **({"metrics": self._costs()} if self.metrics is not None else {}),
        }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """The costs of ops in columns; nothing where there are none."""
    if not rows:
        return []
    total = sum(row["seconds"] for row in rows) or 1.0
    cells = [("op", "plugin", "device", "calls", "fallbacks", "bytes", "seconds", "share")]
    for row in rows:
        names = (row["op"], row["plugin"], row["device"], str(row["calls"]), str(row["fallbacks"]))
        share = f"{row['seconds'] / total:.1%}"
        cells.append((*names, _mb(row["nbytes"]), f"{row['seconds']:.3f}", share))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for cell in cells:
        texts = [
            text.ljust(width) if i < 3 else text.rjust(width)
            for i, (text, width) in enumerate(zip(cell, widths, strict=True))
        ]
        lines.append("metrics: " + "  ".join(texts))
    return lines


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
