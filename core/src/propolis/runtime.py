"""
The life of a worker: load plugins, open devices, resolve tables.

    >>> from propolis import Runtime
    >>> runtime = Runtime.start()
    >>> runtime.device("cpu").id
    'cpu'
"""

from __future__ import annotations

import difflib
import threading
from typing import TYPE_CHECKING

from propolis.config import Config
from propolis.cpu import CpuDevice
from propolis.dispatch.fallback import FallbackLog
from propolis.dispatch.table import DispatchTable
from propolis.errors import DeviceNotFoundError
from propolis.errors import PluginError
from propolis.plugins.contract import check_impl
from propolis.plugins.loader import PluginHost


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.device import Device
    from propolis.device import DeviceProperties
    from propolis.records import DeviceProvider
    from propolis.records import OpImpl
    from propolis.records import Provenance


class Runtime:
    """
    Plugins, devices and settings of a process.

    Attributes:
        config: the settings.
        plugins: the plugins, loaded or not.
        cpu: the CPU, always there.
        fallbacks: what ran on the CPU instead of another device.
    """

    def __init__(self, config: Config, plugins: PluginHost) -> None:
        self.config = config
        self.plugins = plugins
        self.fallbacks = FallbackLog(config.fallback)
        self._opened: dict[str, Device] = {}
        self._providers: dict[str, tuple[Provenance, DeviceProvider]] | None = None
        self.cpu: Device = CpuDevice()
        self.cpu.threads = config.threads or self.cpu.threads
        self._resolve(self.cpu)

    @classmethod
    def start(cls, config: Config | None = None, *, reprobe: bool = False) -> Runtime:
        """
        Load the plugins and open the CPU.

        Args:
            config: the settings; those of the environment when None.
            reprobe: ask every plugin's probe again.

        Raises:
            ConfigError: a setting is wrong.
            PluginError: ``config.strict`` is set and a plugin was rejected.
        """
        config = config or Config.load()
        return cls(config, PluginHost.load(config, reprobe=reprobe))

    def devices(self) -> list[DeviceProperties]:
        """All devices of this machine that plugins provide, the CPU first."""
        found = [self.cpu.properties]
        for _, provider in self._device_providers().values():
            found.extend(provider.enumerate())
        return found

    def device(self, name: str) -> Device:
        """
        Open a device and resolve its table; the same object each time.

        Args:
            name: ``"cpu"``, ``"rocm:0"``; ``"rocm"`` is ``"rocm:0"``.

        Raises:
            DeviceNotFoundError: there is no such device; lists those there are.
        """
        kind, _, index = name.partition(":")
        if kind == "cpu" and index in ("", "0"):
            return self.cpu
        wanted = f"{kind}:{index or 0}"
        if wanted not in self._opened:
            provider = self._device_providers().get(kind)
            known = [p.id for p in self.devices()]
            if provider is None or wanted not in known:
                near = difflib.get_close_matches(wanted, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "`propolis doctor` finds out why"
                msg = f"no device {name!r}; present: {', '.join(known)}; {hint}"
                raise DeviceNotFoundError(msg)
            device = provider[1].open(int(index or 0))
            self._choose_memory(device)
            self._resolve(device)
            self._opened[wanted] = device
        return self._opened[wanted]

    def _resolve(self, device: Device) -> None:
        device.table = DispatchTable(device, self._impls(device), self.cpu, self.fallbacks)

    def _impls(self, device: Device) -> Iterator[OpImpl]:
        for source, impls in self.plugins.each("propolis_ops", device=device):
            checked = []
            try:
                checked = [check_impl(impl, source) for impl in impls]
            except PluginError as exc:
                self.plugins.reject(source.plugin, str(exc), strict=self.config.strict)
            yield from checked

    def _choose_memory(self, device: Device) -> None:
        for _, memory in self.plugins.each("propolis_storage", device=device):
            if memory is not None:
                device.memory = memory
                return

    def _device_providers(self) -> dict[str, tuple[Provenance, DeviceProvider]]:
        if self._providers is None:
            self._providers = {}
            for source, providers in self.plugins.each("propolis_devices", config=self.config):
                for provider in providers:
                    taken = self._providers.setdefault(provider.kind, (source, provider))
                    if provider.kind == "cpu" or taken[1] is not provider:
                        owner = "core" if provider.kind == "cpu" else taken[0].plugin
                        reason = f"device kind {provider.kind!r} is already provided by {owner}"
                        self.plugins.reject(source.plugin, reason, strict=self.config.strict)
        return self._providers


_lock = threading.Lock()
_default: Runtime | None = None


def default_runtime() -> Runtime:
    """The runtime of this process, started with the environment's settings on first use."""
    global _default  # noqa: PLW0603  (one per process is its meaning)
    with _lock:
        if _default is None:
            _default = Runtime.start()
        return _default


def set_default_runtime(runtime: Runtime | None) -> None:
    """Make ``runtime`` the one that tensors without a device belong to."""
    global _default  # noqa: PLW0603
    with _lock:
        _default = runtime
