"""
Who may serve an op on a device, in which order, and why the others may not.

Pure functions over records: resolving needs no model, and runs no plugin code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal

from propolis import dtypes
from propolis.dispatch.rules import Rules


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.dispatch.quarantine import Quarantine
    from propolis.dtypes import DType
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl
    from propolis.records import Provenance
    from propolis.tensor import Device


Status = Literal["winner", "standby", "rejected"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One candidate for an op, and what became of it."""

    impl: OpImpl
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Parts:
    """
    The ops that an op is decomposed into, on one device.

    Attributes:
        names: theirs.
        refusal: why they cannot take its place there; None when they can.
    """

    names: tuple[str, ...]
    refusal: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True, slots=True)
class Server:
    """
    Who serves an op, or takes one call of it: one of three, or nobody.

    Attributes:
        impl: an implementation on the device.
        parts: the ops that it is decomposed into.
        cpu: who serves it on the CPU, where it falls to.
    """

    impl: OpImpl | None = None
    parts: Parts | None = None
    cpu: Server | None = None

    @property
    def provenance(self) -> Provenance | None:
        """Of the implementation, here or on the CPU; None where it is none."""
        if self.cpu is not None:
            return self.cpu.provenance
        return self.impl.provenance if self.impl is not None else None

    def __bool__(self) -> bool:
        return any(rung is not None for rung in (self.impl, self.parts, self.cpu))

    def __str__(self) -> str:
        if self.impl is not None:
            return str(self.impl.provenance)
        if self.parts is not None:
            return f"decomposed into {self.parts}"
        return f"the cpu: {self.cpu}" if self.cpu is not None else "nobody"


@dataclass(frozen=True, slots=True)
class Trace:
    """
    How an op was resolved on a device for one key.

    Attributes:
        op: the op's name.
        device: the device's id.
        key: the dtypes of the dispatch parameters.
        verdicts: every candidate on this device, in the order of the ladder.
        parts: the op's decomposition, the rung below the candidates; None without one.
        cpu: the CPU's own trace, where the CPU is the next rung; else None.
    """

    op: str
    device: str
    key: tuple[DType, ...]
    verdicts: tuple[Verdict, ...]
    parts: Parts | None = None
    cpu: Trace | None = None

    @property
    def chain(self) -> list[OpImpl]:
        """The candidates that may run, first the winner."""
        return [v.impl for v in self.verdicts if v.status != "rejected"]

    @property
    def winner(self) -> OpImpl | None:
        """Who runs the op unless its ``supports`` declines, or None."""
        return next((v.impl for v in self.verdicts if v.status == "winner"), None)

    @property
    def is_decomposed(self) -> bool:
        """Whether the decomposition may run here."""
        return self.parts is not None and self.parts.refusal is None

    @property
    def on_device(self) -> bool:
        """Whether anybody serves the op on the device itself."""
        return self.winner is not None or self.is_decomposed

    @property
    def server(self) -> Server:
        """Who serves the op, whatever ``supports`` will say of single calls."""
        if self.winner is not None:
            return Server(impl=self.winner)
        if self.is_decomposed:
            return Server(parts=self.parts)
        return Server(cpu=self.cpu.server if self.cpu is not None and self.cpu.on_device else None)

    @property
    def rejections(self) -> str:
        """Each rejected candidate with its reason, in one line."""
        lines = [
            f"{v.impl.provenance}: {v.reason}" for v in self.verdicts if v.status == "rejected"
        ]
        lines = lines or [f"no plugin implements {self.op} for {self.device}"]
        if self.parts is not None and self.parts.refusal is not None:
            lines.append(f"decomposed into {self.parts}: {self.parts.refusal}")
        return "; ".join(lines)


def ladder_order(impl: OpImpl, first: Sequence[str] = ()) -> tuple[int, int, str, str, str]:
    """
    Sort key of candidates: override, priority downwards, distribution, plugin, variant.

    Args:
        impl: a candidate.
        first: plugins that the user's override puts before all others.
    """
    source = impl.provenance
    plugin = source.plugin if source else ""
    named = first.index(plugin) if plugin in first else len(first)
    distribution = source.distribution if source else ""
    return (named, -impl.priority, distribution, plugin, impl.variant)


def resolve(
    spec: OpSpec,
    key: Key,
    device: Device,
    candidates: Iterable[OpImpl],
    cpu: Trace | None = None,
    rules: Rules | None = None,
    parts: Parts | None = None,
    quarantine: Quarantine | None = None,
) -> Trace:
    """
    Order the candidates of an op and decide each one's static support.

    Args:
        spec: the op.
        key: dtypes of its dispatch parameters, already checked against the spec.
        device: where it is to run.
        candidates: implementations of this op, for any device.
        cpu: the CPU's trace for the same key when ``device`` is not the CPU.
        rules: the user's decisions.
        parts: what the device's table says of the op's decomposition.
        quarantine: implementations that raised.
    """
    rules = rules or Rules()
    first = rules.overrides.get(spec.name, ())
    kinds = key if isinstance(key, tuple) else (key,)
    verdicts: list[Verdict] = []
    winner: OpImpl | None = None
    for impl in sorted(candidates, key=lambda impl: ladder_order(impl, first)):
        reason = static_refusal(spec, kinds, device, impl)
        if reason is None and rules.exact and not impl.exact:
            reason = "it rounds its inputs further, and numerics is 'exact'"
        if reason is None and quarantine is not None:
            raised = quarantine.reason(impl, kinds, device)
            reason = raised and f"quarantined: {raised}; `propolis quarantine clear` lets it back"
        if reason is not None:
            verdicts.append(Verdict(impl, "rejected", reason))
        elif winner is None:
            winner = impl
            asks = ", if its supports() accepts the call" if impl.supports else ""
            why = "by override" if _named(impl, first) else "highest priority"
            verdicts.append(Verdict(impl, "winner", f"{why} ({impl.priority}){asks}"))
        else:
            who = winner.provenance.plugin if winner.provenance else "another"
            by_name = ", then by distribution" if winner.priority == impl.priority else ""
            why = f"priority {winner.priority} to {impl.priority}{by_name}"
            reason = f"behind {who} ({'by override' if _named(winner, first) else why})"
            verdicts.append(Verdict(impl, "standby", reason))
    return Trace(spec.name, device.id, kinds, tuple(verdicts), parts, cpu)


def _named(impl: OpImpl, first: Sequence[str]) -> bool:
    """Whether the user's override names the implementation's plugin."""
    return impl.provenance is not None and impl.provenance.plugin in first


def static_refusal(
    spec: OpSpec, kinds: Sequence[DType], device: Device, impl: OpImpl
) -> str | None:
    """Why ``impl`` can never run this key on this device; None when it can."""
    if impl.device != device.kind:
        return f"runs on {impl.device}, not on {device.kind}"
    arch = device.properties.arch
    if impl.archs is not None and arch not in impl.archs:
        return f"built for {', '.join(sorted(impl.archs))}; this device is {arch}"
    if impl.unusable:
        return impl.unusable
    for name, kind in zip(spec.dtypes, kinds, strict=True):
        allowed = impl.dtypes
        if isinstance(allowed, Mapping):
            allowed = allowed.get(name, spec.dtypes[name])
        if kind not in allowed:
            known = ", ".join(d.name for d in dtypes.ALL if d in allowed)
            return f"{name} is {kind}; it takes {known or 'nothing'}"
    return None
