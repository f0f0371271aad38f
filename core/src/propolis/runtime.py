"""
The life of a worker: load plugins, open devices, resolve tables.

    >>> from propolis import Runtime
    >>> runtime = Runtime.start()
    >>> runtime.device("cpu").id
    'cpu'
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import importlib_metadata

from propolis import events
from propolis.config import Config
from propolis.cpu import CpuDevice
from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.metrics import Metrics
from propolis.dispatch.rules import Rules
from propolis.dispatch.table import DispatchTable
from propolis.errors import ArgumentTypeError
from propolis.errors import ConfigError
from propolis.errors import DeviceError
from propolis.errors import DeviceNotFoundError
from propolis.errors import PluginError
from propolis.errors import PropolisError
from propolis.plugins.contract import check_impls
from propolis.plugins.loader import PluginHost
from propolis.plugins.quarantine_file import QuarantineFile
from propolis.plugins.tuned_file import TunedFile
from propolis.storage import DeviceProperties
from propolis.storage import Memory
from propolis.tensor import Device
from propolis.wording import describe
from propolis.wording import did_you_mean


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.plugins.vetting import Reprobe
    from propolis.records import DeviceProvider
    from propolis.records import OpImpl
    from propolis.records import Provenance


OBSERVERS: Final = "propolis.observers"
"""Entry points of what looks at calls, by the setting that asks for it."""


class Runtime:
    """
    Plugins, devices and settings of a process.

    Attributes:
        config: the settings.
        plugins: the plugins, loaded or not.
        cpu: the CPU, always there.
        fallbacks: what ran on the CPU instead of another device.
        rules: the user's decisions about dispatch.
        quarantine: implementations that raised or crashed, now or in an earlier process.
        tuned: who was measured to be the fastest, here and by these plugins.
        metrics: what ops cost; None where the settings do not ask.
    """

    def __init__(self, config: Config, plugins: PluginHost) -> None:
        self.config = config
        self.plugins = plugins
        self.fallbacks = FallbackLog(
            config.fallback,
            max_calls=config.fallback_max_calls,
            max_bytes=config.fallback_max_bytes,
        )
        self.rules = Rules.from_config(config, {r.candidate.name for r in plugins.reports})
        self.quarantine = QuarantineFile(config.cache_dir).quarantine(plugins.reports)
        self.tuned = TunedFile(config.cache_dir).tuned(plugins.reports)
        self.metrics = Metrics() if config.metrics else None
        self._lock = threading.RLock()
        self._opened: dict[str, Device] = {}
        self._providers: dict[str, tuple[Provenance, DeviceProvider]] | None = None
        self.cpu: Device = CpuDevice()
        self.cpu.threads = config.threads or self.cpu.threads
        self._resolve(self.cpu)

    @classmethod
    def start(cls, config: Config | None = None, *, reprobe: Reprobe = False) -> Runtime:
        """
        Load the plugins and open the CPU.

        Args:
            config: the settings; those of the environment when None.
            reprobe: ask every plugin's probe again; ``"unless hung"``: save those that hung.

        Raises:
            ArgumentTypeError: the settings are something else.
            ConfigError: a setting is wrong.
            PluginError: ``config.strict`` is set and a plugin was rejected.
        """
        if not isinstance(config, Config | None):
            msg = f"config is a {type(config).__name__}; supported: a Config, as Config.load gives"
            raise ArgumentTypeError(msg)
        config = config or Config.load()
        return cls(config, PluginHost.load(config, reprobe=reprobe))

    def devices(self) -> list[DeviceProperties]:
        """
        All devices of this machine that plugins provide, the CPU first.

        A plugin whose provider fails is rejected; the others' devices stay.
        """
        found = [self.cpu.properties]
        with self._lock:
            for kind, (source, provider) in list(self._device_providers().items()):
                try:
                    listed = list(provider.enumerate())
                except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code)
                    self._reject_provider(source, f"listing {kind} raised {describe(exc)}", exc)
                    continue
                strange = [p for p in listed if not _describes(p, kind)]
                if strange:
                    text = f"its provider of {kind} listed {strange[0]!r}"
                    self._reject_provider(source, text)
                    continue
                found.extend(listed)
        return found

    def device(self, name: str | Device | None = None) -> Device:
        """
        Open a device and resolve its table; the same object each time.

        Args:
            name: ``"cpu"``, ``"rocm:0"``; ``"rocm"`` is ``"rocm:0"``.  That of the settings when
                None; an open device is itself.

        Raises:
            ArgumentTypeError: it is something else.
            DeviceNotFoundError: there is no such device; lists those there are.
            DeviceError: it cannot be opened.
        """
        if isinstance(name, Device):
            return name
        name = self.config.device if name is None else name
        if not isinstance(name, str):
            msg = f"device is {name!r:.60}; supported: an id (cpu, rocm:0) or an open Device"
            raise ArgumentTypeError(msg)
        with self._lock:
            return self._device(name)

    def _device(self, name: str) -> Device:
        kind, _, index = name.partition(":")
        if kind == "cpu" and index in ("", "0"):
            return self.cpu
        wanted = f"{kind}:{index or 0}"
        if wanted not in self._opened:
            known = [p.id for p in self.devices()]
            provider = self._device_providers().get(kind)
            if provider is None or wanted not in known:
                hint = did_you_mean(wanted, known, most=1) or self._why_absent()
                msg = f"no device {name!r}; present: {', '.join(known)}; {hint}"
                raise DeviceNotFoundError(msg)
            device = _open(wanted, int(index or 0), *provider)
            self._choose_memory(device)
            self._resolve(device)
            self._opened[wanted] = device
            events.DEVICE_OPENED.emit(
                device=device.id,
                name=device.properties.name,
                arch=device.properties.arch,
                plugin=provider[0].plugin,
            )
        return self._opened[wanted]

    def _why_absent(self) -> str:
        """What plugins say that cannot be used here, and who knows more."""
        refused = [r for r in self.plugins.reports if r.status == "rejected"]
        said = [f"{r.candidate.name}: {r.reason}" for r in refused]
        return "; ".join([*said, "`propolis doctor` finds out why"])

    def _resolve(self, device: Device) -> None:
        device.checks_memory = self.config.memory_check
        impls = self._impls(device)
        table = device.table = DispatchTable(
            device,
            impls,
            self.cpu,
            self.fallbacks,
            self.rules,
            self.quarantine,
            self.metrics,
            self.tuned,
        )
        if self.config.save_failing_calls is not None:
            saver = _observer("save_failing_calls")
            table.intercept(saver(device, self.config.save_failing_calls))

    def _impls(self, device: Device) -> Iterator[OpImpl]:
        for source, impls in self.plugins.each("propolis_ops", device=device):
            try:
                yield from check_impls(impls, source)
            except PluginError as exc:
                self.plugins.reject(source.plugin, str(exc), exc)

    def _choose_memory(self, device: Device) -> None:
        chosen: Provenance | None = None
        for source, memory in self.plugins.each("propolis_storage", device=device):
            if not isinstance(memory, Memory):
                text = f"propolis_storage gave a {type(memory).__name__}, not a Memory"
                self.plugins.reject(source.plugin, text)
            elif chosen is None:
                device.memory, chosen = memory, source
            else:
                events.DEVICE_MEMORY_IGNORED.emit(
                    device=device.id, plugin=source.plugin, taken_from=chosen.plugin
                )

    def _device_providers(self) -> dict[str, tuple[Provenance, DeviceProvider]]:
        if self._providers is None:
            self._providers = {}
            for source, providers in self.plugins.each("propolis_devices", config=self.config):
                for provider in providers:
                    reason = self._refuse_provider(provider)
                    if reason is not None:
                        self._reject_provider(source, reason)
                        break
                    self._providers[provider.kind] = source, provider
        return self._providers

    def _refuse_provider(self, provider: Any) -> str | None:
        """Why core does not take a provider; None when it does."""
        kind = getattr(provider, "kind", None)
        if not isinstance(kind, str):
            return f"propolis_devices gave a {type(provider).__name__}, not a DeviceProvider"
        if kind == "cpu":
            return "device kind 'cpu' is provided by core"
        taken = (self._providers or {}).get(kind)
        if taken is not None and taken[1] is not provider:
            return f"device kind {kind!r} is already provided by {taken[0].plugin}"
        return None

    def _reject_provider(
        self, source: Provenance, reason: str, exception: BaseException | None = None
    ) -> None:
        """Reject a plugin, and forget every kind of device it provides."""
        providers = self._providers or {}
        for kind in [kind for kind, (owner, _) in providers.items() if owner == source]:
            del providers[kind]
        self.plugins.reject(source.plugin, reason, exception)


def _observer(setting: str) -> Callable[..., Any]:
    """
    What looks at calls where a setting asks for it: another distribution's, by entry point.

    Raises:
        ConfigError: none is installed.
    """
    for entry in importlib_metadata.entry_points(group=OBSERVERS, name=setting):
        found: Callable[..., Any] = entry.load()
        return found
    msg = f"{setting} is set, and nothing that does it is installed: pip install "
    msg += f"propolis-conformance, or leave {setting} out"
    raise ConfigError(msg)


def _describes(properties: object, kind: str) -> bool:
    return isinstance(properties, DeviceProperties) and properties.kind == kind


def _open(name: str, index: int, source: Provenance, provider: DeviceProvider) -> Device:
    try:
        device = provider.open(index)
    except PropolisError:
        raise
    except Exception as exc:
        msg = f"{source} cannot open {name}: {describe(exc)}; `propolis doctor` finds out why"
        raise DeviceError(msg) from exc
    if not isinstance(device, Device):
        msg = f"{source} opened {name} as a {type(device).__name__}, not a Device"
        raise PluginError(msg)
    return device


# Reentrant, so that a plugin which asks for the default runtime while that is
# starting gets an error instead of waiting for itself.
_lock = threading.RLock()
_default: Runtime | None = None
_starting = False


def default_runtime() -> Runtime:
    """
    The runtime of this process, started with the environment's settings on first use.

    Raises:
        PluginError: a plugin asked for it while it was starting.
    """
    global _default, _starting  # noqa: PLW0603  (one per process is its meaning)
    with _lock:
        if _starting:
            msg = (
                "the default runtime is starting: a plugin's hooks must not use it "
                "(Tensor.from_numpy without a device does)"
            )
            raise PluginError(msg)
        if _default is None:
            _starting = True
            try:
                _default = Runtime.start()
            finally:
                _starting = False
        return _default


def set_default_runtime(runtime: Runtime | None) -> None:
    """Make ``runtime`` the one that tensors without a device belong to."""
    global _default  # noqa: PLW0603
    with _lock:
        _default = runtime
