"""
The op matrix: which plugin has which op and dtype, and who has seen it work.

It is made of what the installed plugins declare for devices that they describe, present
or not, and of conformance reports.  Nothing of this machine's hardware is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal

from propolis.described import DescribedDevice
from propolis.dispatch.table import DispatchTable
from propolis.errors import PluginError
from propolis.ops import catalogue
from propolis.plugins.contract import check_impl
from propolis.plugins.loader import PluginHost
from propolis.records import OpImpl
from propolis.storage import DeviceProperties
from propolis.wording import describe
from propolis_conformance.keys import keys
from propolis_conformance.keys import label_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.config import Config
    from propolis.dtypes import DType
    from propolis.ops import OpSpec
    from propolis.plugins.discovery import Candidate
    from propolis_conformance.report import Report

CPUS: Final = ("x86_64", "aarch64")

Level = Literal["hardware", "passed", "failed", "wired", "declared"]


@dataclass(slots=True)
class Entry:
    """
    One op at one key, by one plugin on one kind of device.

    Attributes:
        spec: the op.
        key: the dtypes.
        wired: architectures on which a worker's table can reach the implementation.
        reports: name -> status, of the reports of this version that judged it.
        hardware: whether one of the reports that passed it ran on hardware.
    """

    spec: OpSpec
    key: tuple[DType, ...]
    wired: list[str] = field(default_factory=list)
    reports: dict[str, str] = field(default_factory=dict)
    hardware: bool = False

    @property
    def level(self) -> Level:
        """The most that is known of it; one report in which it fails outweighs the others."""
        statuses = set(self.reports.values())
        if statuses & {"failed", "expected"}:
            return "failed"
        if "passed" in statuses:
            return "hardware" if self.hardware else "passed"
        return "wired" if self.wired else "declared"


@dataclass(slots=True)
class Column:
    """
    What a plugin has for a kind of device.

    Attributes:
        plugin: its name, distribution and version.
        kind: of device.
        archs: the architectures that the kind is described with.
        refusal: why a worker takes nothing of it; empty where it does.
        entries: by unit label, ``"add[f32]"``, in the order of the catalogue.
    """

    plugin: Candidate
    kind: str
    archs: list[str] = field(default_factory=list)
    refusal: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)

    def declare(self, impl: OpImpl) -> None:
        """Enter the keys whose dtypes an implementation names."""
        spec = catalogue()[impl.op]
        for key in keys(spec):
            if _takes(impl, spec, key):
                self.entries.setdefault(label_of(spec, key), Entry(spec, key))

    @property
    def title(self) -> str:
        """Who, and on what."""
        return f"{self.plugin.name} on {self.kind}"


@dataclass(slots=True)
class Matrix:
    """
    All of it.

    Attributes:
        columns: plugins by kind of device, those that declare anything.
        idle: plugins that declare no op here, each with the reason.
        reports: the evidence, by name of its file.
    """

    columns: list[Column]
    idle: list[tuple[Candidate, str]]
    reports: dict[str, Report]

    def judged(self, report: Report) -> Column | None:
        """The column that a report is evidence for; None for other versions and quick runs."""
        if report.quick:
            return None
        kind, plugin = report.device.id.partition(":")[0], report.plugin
        for column in self.columns:
            mine = (column.plugin.name, column.plugin.version, column.kind)
            if mine == (plugin.plugin, plugin.version, kind):
                return column
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every op at every key."""
        return {
            "columns": [
                {
                    "plugin": column.plugin.name,
                    "distribution": column.plugin.distribution,
                    "version": column.plugin.version,
                    "kind": column.kind,
                    "archs": column.archs,
                    "refusal": column.refusal,
                    "entries": {
                        name: {"level": e.level, "wired": e.wired, "reports": e.reports}
                        for name, e in column.entries.items()
                    },
                }
                for column in self.columns
            ],
            "idle": {str(plugin): reason for plugin, reason in self.idle},
            "reports": {
                name: {
                    "plugin": r.plugin.plugin,
                    "version": r.plugin.version,
                    "device": r.device.name,
                    "arch": r.device.arch,
                    "simulator": r.simulator,
                    "counted": self.judged(r) is not None,
                }
                for name, r in self.reports.items()
            },
        }


def collect(config: Config, reports: Mapping[str, Report]) -> Matrix:
    """
    The matrix of the plugins that the config admits.

    Args:
        config: the settings; its allow list chooses the plugins.
        reports: the evidence, by name.

    Raises:
        PluginError: the config is strict and a plugin was rejected.
    """
    host = PluginHost.load(config, probe=False)
    described = {"cpu": [DeviceProperties("cpu", 0, "any CPU", arch) for arch in CPUS]}
    idle: dict[str, str] = {}
    for plugin, kind, devices in _described(host, config):
        if devices:
            described.setdefault(kind, devices)
        else:
            idle[plugin] = f"its provider of {kind} does not describe() devices"
    columns: list[Column] = []
    for devices in described.values():
        found: dict[str, Column] = {}
        for properties in devices:
            for plugin, elsewhere in _declare(host, properties, found):
                if elsewhere not in described:
                    idle[plugin] = f"declares ops for {elsewhere}, which no plugin here describes"
        for column in found.values():
            column.archs = [p.arch for p in devices]
        columns += sorted(found.values(), key=lambda column: column.plugin)
    matrix = Matrix(columns, [], dict(sorted(reports.items())))
    for loaded in host.reports:
        mine = [column for column in columns if column.plugin == loaded.candidate]
        for column in mine:
            column.refusal = loaded.reason
        if not mine:
            why = loaded.reason or idle.get(loaded.candidate.name, "declares no ops")
            matrix.idle.append((loaded.candidate, why))
    for name, report in matrix.reports.items():
        judged = matrix.judged(report)
        if judged is not None:
            _judge(judged, name, report)
    return matrix


def _described(
    host: PluginHost, config: Config
) -> Iterator[tuple[str, str, list[DeviceProperties]]]:
    """Plugin, kind of device, and the devices of that kind that the plugin describes."""
    for source, providers in host.each("propolis_devices", config=config):
        for provider in providers:
            try:
                kind, devices = provider.kind, list(getattr(provider, "describe", tuple)())
                strange = [d for d in devices if getattr(d, "kind", None) != kind]
            except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code)
                host.reject(source.plugin, f"describing devices raised {describe(exc)}", exc)
                break
            if strange:
                host.reject(source.plugin, f"its provider of {kind} described {strange[0]!r}")
                break
            yield source.plugin, kind, devices


def _declare(
    host: PluginHost, properties: DeviceProperties, columns: dict[str, Column]
) -> set[tuple[str, str]]:
    """
    Ask every plugin about one device, and resolve a table of the answers.

    Args:
        host: the plugins.
        properties: of the device.
        columns: by plugin, of this kind of device; what is found is entered there.

    Returns:
        Plugin and device kind of what is declared for other kinds.
    """
    candidates = {report.candidate.name: report.candidate for report in host.reports}
    device = DescribedDevice(properties)
    serving: list[OpImpl] = []
    elsewhere: set[tuple[str, str]] = set()
    for source, answered in host.each("propolis_ops", device=device):
        # What is no OpImpl of an op there is, the contract refuses below.
        for impl in (i for i in answered if isinstance(i, OpImpl) and i.op in catalogue()):
            if impl.device != device.kind:
                elsewhere.add((source.plugin, impl.device))
                continue
            fresh = Column(candidates[source.plugin], device.kind)
            columns.setdefault(source.plugin, fresh).declare(impl)
        try:
            serving += [check_impl(impl, source) for impl in answered]
        except PluginError as exc:  # a worker takes nothing of a plugin that breaks a rule
            host.reject(source.plugin, str(exc), exc)
    cpu = DescribedDevice(DeviceProperties("cpu", 0, "any CPU", CPUS[0]))
    cpu.table = DispatchTable(cpu, (), cpu)
    table = DispatchTable(device, serving, device if device.kind == "cpu" else cpu)
    for plugin, column in columns.items():
        for entry in column.entries.values():
            chain = table.trace(entry.spec, entry.spec.key(*entry.key)).chain
            if any(i.provenance is not None and i.provenance.plugin == plugin for i in chain):
                entry.wired.append(properties.arch)
    return elsewhere


def _takes(impl: OpImpl, spec: OpSpec, key: tuple[DType, ...]) -> bool:
    """Whether an implementation names the dtypes of a key."""
    for name, kind in zip(spec.dtypes, key, strict=True):
        allowed = impl.dtypes
        if isinstance(allowed, Mapping):
            allowed = allowed.get(name, spec.dtypes[name])
        if kind not in allowed:
            return False
    return True


def _judge(column: Column, name: str, report: Report) -> None:
    """Enter what a report says of a column."""
    for result in report.results:
        entry = column.entries.get(result.unit.partition("#")[0])
        if entry is None:
            continue
        said = entry.reports.get(name, "passed")
        # Of several implementations of one key, the worst counts.
        entry.reports[name] = result.status if said == "passed" else said
        entry.hardware |= result.status == "passed" and not report.simulator
