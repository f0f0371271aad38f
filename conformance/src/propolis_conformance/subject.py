"""What is judged: a plugin's implementations, one at a time, on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

from propolis import dtypes
from propolis.config import Config
from propolis.cpu import CpuDevice
from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.quarantine import Quarantine
from propolis.dispatch.resolve import static_refusal
from propolis.dispatch.table import DispatchTable
from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis.ops import catalogue
from propolis.plugins.contract import check_impl
from propolis.runtime import Runtime
from propolis.runtime import set_default_runtime
from propolis.wording import did_you_mean
from propolis.wording import plugin_name
from propolis_conformance.keys import keys
from propolis_conformance.keys import label_of
from propolis_conformance.meter import Meter


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.plugins.loader import PluginReport
    from propolis.records import OpImpl
    from propolis.tensor import Device

REFERENCE = "cpu_ref"


@dataclass(frozen=True, slots=True)
class Unit:
    """
    One implementation at one dispatch key.

    Attributes:
        name: ``"add[f32]"``, ``"qmatmul[f16,q4_0]"``; ``"add[f32]#2"`` of a second
            implementation.
        spec: the op.
        key: the dtypes.
        impl: the implementation.
    """

    name: str
    spec: OpSpec
    key: tuple[DType, ...]
    impl: OpImpl


class Raised(Quarantine):
    """
    Notes that an implementation raised, and takes nothing out.

    In a worker the next rung would do the call and the fault would stay unseen here.

    Attributes:
        reason_given: what the last one raised, None while none did.
    """

    reason_given: str | None = None

    def reason(self, impl: OpImpl, key: Key, device: Device) -> str | None:
        """Nothing is ever quarantined."""
        del impl, key, device
        return None

    def add(
        self, impl: OpImpl, key: Key, device: Device, reason: str, *, lasting: bool = True
    ) -> None:
        """Note the reason."""
        del impl, key, device, lasting
        self.reason_given = reason


def _expect_some_call(spec: OpSpec, impl: OpImpl) -> None:
    """
    Refuse an implementation that no call can reach.

    Raises:
        PluginError: of a parameter it takes no dtype that the op has.
    """
    for name, allowed in spec.dtypes.items():
        takes = impl.dtypes
        if isinstance(takes, Mapping):
            takes = takes.get(name, allowed)
        if allowed.isdisjoint(takes):
            listed = [", ".join(d.name for d in dtypes.ALL if d in of) for of in (allowed, takes)]
            msg = (
                f"{spec.name}: no call comes to its OpImpl, which takes {name} of "
                f"{listed[1] or 'no dtype'}; the op has {listed[0]} there: give dtypes by "
                f"parameter, as in dtypes={{{name!r}: ...}}"
            )
            raise PluginError(msg)


def _expect_loaded(report: PluginReport) -> None:
    if report.status != "loaded":
        name = report.candidate.name
        msg = f"plugin {name} is {report.status}: {report.reason}; `propolis doctor` shows it"
        raise PluginError(msg)


class Subject:
    """
    A plugin on a device.

    Attributes:
        units: everything it declares.
        device: where it runs.
        oracle: a CPU with the reference's implementations and no others.
        meter: what the implementation in use does.
        facts: plugin, distribution, version, device, for the report, and whose calls never come
            here, with the reason.
    """

    meter: Meter

    def __init__(self, plugin: str, device: str | None, *, quick: bool = True) -> None:
        config = Config.load(fallback="allow")
        runtime = Runtime.start(config)
        set_default_runtime(runtime)
        name = plugin_name(plugin)
        report = next((r for r in runtime.plugins.reports if r.candidate.name == name), None)
        if report is None:
            known = sorted(r.candidate.name for r in runtime.plugins.reports)
            msg = f"no plugin {plugin!r} is installed; there are: {', '.join(known) or 'none'}; "
            msg = (msg + did_you_mean(name, known)).removesuffix("; ")
            raise UsageError(msg)
        _expect_loaded(report)
        where = device or self._home(runtime, report)
        self.device = runtime.device(where)
        self._others: list[OpImpl] = []
        own: list[OpImpl] = []
        reference: list[OpImpl] = []
        for source, found in runtime.plugins.each("propolis_ops", device=self.device):
            for impl in found:
                checked = check_impl(impl, source)
                (own if source.plugin == name else self._others).append(checked)
        for source, found in runtime.plugins.each("propolis_ops", device=runtime.cpu):
            if source.plugin == REFERENCE:
                reference += [check_impl(impl, source) for impl in found]
        self.oracle: Device = CpuDevice()
        self.oracle.table = DispatchTable(self.oracle, reference, self.oracle)
        self._cpu = runtime.cpu
        self._own = own
        self._left_out: list[str] = []
        self.units = self._units(own, quick=quick)
        properties = self.device.properties
        self.facts: dict[str, Any] = {
            "plugin": name,
            "distribution": report.candidate.distribution,
            "version": report.candidate.version,
            "device": self.device.id,
            "device_name": properties.name,
            "arch": properties.arch,
            "device_extra": dict(properties.extra),
            "files": list(report.files),
            "left_out": self._left_out,
        }

    def use(self, unit: Unit) -> FallbackLog:
        """Make the unit's implementation the only one of its op; others serve other ops."""
        same = [i for i in (*self._own, *self._others) if i.op != unit.spec.name]
        log = FallbackLog("allow")
        cpu = self.device if self.device is self._cpu else self._cpu
        self.raised = Raised()
        self.meter = Meter(unit.impl, self.device)
        impls = [self.meter.impl, *same]
        self.device.table = DispatchTable(self.device, impls, cpu, log, quarantine=self.raised)
        return log

    @staticmethod
    def _home(runtime: Runtime, report: PluginReport) -> str:
        """The first device that the plugin has implementations for."""
        name = report.candidate.name
        for properties in runtime.devices():
            device = runtime.device(properties.id)
            for source, found in runtime.plugins.each("propolis_ops", device=device):
                if source.plugin == name and list(found):
                    return properties.id
        _expect_loaded(report)  # a plugin whose hooks fail is rejected when they are asked
        present = ", ".join(p.id for p in runtime.devices())
        msg = (
            f"plugin {name} has no implementations for the devices present ({present}): "
            f"nothing to judge; --device chooses another"
        )
        raise UsageError(msg)

    def _units(self, impls: list[OpImpl], *, quick: bool) -> list[Unit]:
        units: list[Unit] = []
        seen: dict[str, int] = {}
        for impl in impls:
            spec = catalogue()[impl.op]
            _expect_some_call(spec, impl)
            before, why = len(units), ""
            for key in keys(spec, every=not quick):
                refused = static_refusal(spec, key, self.device, impl)
                if refused is not None:
                    why = refused
                    continue
                label = label_of(spec, key)
                seen[label] = count = seen.get(label, 0) + 1
                units.append(Unit(label if count == 1 else f"{label}#{count}", spec, key, impl))
            if len(units) == before:
                variant = f" ({impl.variant})" if impl.variant else ""
                self._left_out.append(f"{spec.name}{variant}: {why}")
        return units
