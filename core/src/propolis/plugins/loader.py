"""
Load plugins one by one, so that a broken one is a row in a report and no more.

pluggy's own loader stops at the first failure and skips duplicates without a word.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal

import pluggy

from propolis import events
from propolis import hookspecs
from propolis.errors import PluginError
from propolis.plugins.contract import hook_problems
from propolis.plugins.discovery import discover
from propolis.plugins.discovery import duplicates
from propolis.plugins.discovery import policy
from propolis.plugins.vetting import vet
from propolis.plugins.vetting import vet_together
from propolis.records import API_LEVEL
from propolis.records import ESSENTIAL
from propolis.records import OLDEST_API_LEVEL
from propolis.records import PluginInfo
from propolis.records import Provenance
from propolis.wording import describe
from propolis.wording import plugin_name


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis.config import Config
    from propolis.plugins.discovery import Candidate
    from propolis.plugins.vetting import Reprobe
    from propolis.records import ProbeResult


PATIENCE = 10.0
"""Seconds after which a plugin's import, and a hook of it, are said to be slow."""

Status = Literal["loaded", "disabled", "rejected"]
Stage = Literal["policy", "name", "probe", "import", "register", "api", "hooks"]


@dataclass(slots=True)
class PluginReport:
    """
    What became of one installed plugin.

    Attributes:
        candidate: name, distribution, version.
        status: ``loaded``, ``disabled`` (by the user) or ``rejected``.
        stage: where it stopped, None when loaded.
        reason: why, in one line, with the remedy.
        description: what it says of itself.
        hooks: the hooks it implements.
        files: native libraries that its probe named.
        answered: its probe gave an answer, so that importing it is safe.
        exception: what it raised, for ``--debug``.
    """

    candidate: Candidate
    status: Status = "loaded"
    stage: Stage | None = None
    reason: str = ""
    description: str = ""
    hooks: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
    answered: bool = True
    exception: BaseException | None = None

    def reject(self, stage: Stage, reason: str, exception: BaseException | None = None) -> None:
        """Take the plugin out, keeping why."""
        self.status = "disabled" if stage == "policy" else "rejected"
        self.stage, self.reason, self.exception = stage, " ".join(reason.split()), exception


class PluginHost:
    """
    The plugins of this process.

    Attributes:
        reports: one for each installed plugin, loaded or not, in a fixed order.
        strict: whether a plugin that is rejected is an error.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.reports: list[PluginReport] = []
        self.strict = strict
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        self._pm.add_hookspecs(hookspecs)
        self._plugins: dict[str, Any] = {}

    @classmethod
    def load(cls, config: Config, *, reprobe: Reprobe = False, probe: bool = True) -> PluginHost:
        """
        Discover, vet, import, check and register every plugin that the config admits.

        Args:
            config: the settings.
            reprobe: ask every plugin's probe again; ``"unless hung"``: save those that hung.
            probe: False to import plugins that this machine cannot run, to read what
                they declare; importing one must succeed anywhere, running it need not.

        Raises:
            ConfigError: the config names plugins that are not installed.
            PluginError: ``config.strict`` is set and a plugin was rejected.
        """
        host = cls(strict=config.strict)
        candidates = discover()
        refusals = policy(candidates, config)
        claims = duplicates(candidates)
        asked = [
            c
            for c in candidates
            if probe and c not in refusals and c.name not in ESSENTIAL and c.name not in claims
        ]
        known = vet_together(
            asked, timeout=config.probe_timeout, cache_dir=config.cache_dir, fresh=reprobe
        )
        for candidate in candidates:
            report = PluginReport(candidate)
            host.reports.append(report)
            if candidate in refusals:
                report.reject("policy", refusals[candidate])
            elif candidate.name in ESSENTIAL and not candidate.is_essential:
                owner = ESSENTIAL[candidate.name]
                report.reject("name", f"this name belongs to {owner}; give the plugin another")
            elif candidate.name in claims and not candidate.is_essential:
                owners = " and ".join(c.distribution for c in claims[candidate.name])
                report.reject(
                    "name", f"several distributions claim this name: {owners}; remove one"
                )
            else:
                host._admit(report, config, known, reprobe=reprobe, probe=probe)
            host._announce(report)
        return host

    def each(self, hook: str, /, **kwargs: Any) -> Iterator[tuple[Provenance, Any]]:
        """
        Call one hook of every plugin that implements it, each on its own.

        A plugin that raises is rejected and unregistered; the others' answers stay.

        Raises:
            PluginError: the host is strict and a plugin was rejected.
        """
        for report in list(self.reports):
            if report.status != "loaded" or hook not in report.hooks:
                continue
            candidate = report.candidate
            others = [p for name, p in self._plugins.items() if name != candidate.name]
            caller = self._pm.subset_hook_caller(hook, remove_plugins=others)
            try:
                with _told_if_slow(candidate, hook):
                    answers = [list(a) if _is_collection(hook) else a for a in caller(**kwargs)]
            except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's code raises)
                self.reject(candidate.name, f"{hook} raised {describe(exc)}", exc)
                continue
            source = Provenance(candidate.name, candidate.distribution, candidate.version)
            for answer in answers:
                yield source, answer

    def refused_checks(self) -> Iterator[tuple[Provenance, Any]]:
        """
        The doctor checks of plugins whose probe said no: they know best what is missing.

        A plugin whose probe crashed is not imported; one that cannot give its checks
        has its reason said already.
        """
        for report in self.reports:
            if report.status != "rejected" or report.stage != "probe" or not report.answered:
                continue
            candidate = report.candidate
            try:
                plugin = load_object(candidate.value)
                if "propolis_doctor_checks" not in self._implemented(plugin):
                    continue
                checks = list(plugin.propolis_doctor_checks())
            except (Exception, SystemExit):  # noqa: BLE001, S112  (a stranger's code, refused anyway)
                continue
            yield Provenance(candidate.name, candidate.distribution, candidate.version), checks

    def reject(self, name: str, reason: str, exception: BaseException | None = None) -> None:
        """
        Take a loaded plugin out that broke its contract with core.

        Raises:
            PluginError: the host is strict.
        """
        for report in self.reports:
            if report.candidate.name == name and report.status == "loaded":
                report.reject("hooks", reason, exception)
                self._forget(name)
                self._announce(report)

    def _admit(
        self,
        report: PluginReport,
        config: Config,
        known: Mapping[Candidate, ProbeResult],
        *,
        reprobe: Reprobe,
        probe: bool,
    ) -> None:
        candidate = report.candidate
        if probe and not candidate.is_essential:
            verdict = known.get(candidate) or vet(
                candidate, timeout=config.probe_timeout, cache_dir=config.cache_dir, fresh=reprobe
            )
            report.answered = verdict.answered
            if not verdict.ok:
                report.reject("probe", verdict.reason)
                return
            report.files = verdict.files
        try:
            with _told_if_slow(candidate, "import"):
                plugin = load_object(candidate.value)
        except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's code raises)
            report.reject("import", f"importing it raised {describe(exc)}", exc)
            return
        if plugin is None:
            report.reject("import", f"its entry point {candidate.value} is None")
            return
        try:
            report.hooks = list(self._implemented(plugin))
        except Exception as exc:  # noqa: BLE001  (whatever a stranger's object does)
            report.reject("register", f"looking into it raised {describe(exc)}", exc)
            return
        try:
            problems = hook_problems(candidate.name, plugin, report.hooks)
            if problems:
                report.reject("register", "; ".join(problems))
                return
            self._pm.register(plugin, candidate.name)
        except Exception as exc:  # noqa: BLE001  (pluggy looks into a stranger's object)
            report.reject("register", str(exc) or type(exc).__name__, exc)
            return
        self._plugins[candidate.name] = plugin
        self._check_info(report, plugin)
        if report.status != "loaded":
            self._forget(candidate.name)

    def _implemented(self, plugin: Any) -> Iterable[str]:
        """Names of the plugin's functions that carry our marker; runs none of its code."""
        for name in sorted(dir(plugin)):
            if self._pm.parse_hookimpl_opts(plugin, name) is not None:
                yield name

    def _check_info(self, report: PluginReport, plugin: Any) -> None:
        """Compare what the plugin says of itself with what was installed."""
        name = report.candidate.name
        if "propolis_plugin" not in report.hooks:
            report.reject(
                "api", "it does not implement propolis_plugin(), which gives its API level"
            )
            return
        try:
            with _told_if_slow(report.candidate, "propolis_plugin"):
                info = plugin.propolis_plugin()
        except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's code raises)
            report.reject("api", f"propolis_plugin() raised {describe(exc)}", exc)
            return
        if not isinstance(info, PluginInfo):
            kind = type(info).__name__
            report.reject("api", f"propolis_plugin() returned a {kind}, not a PluginInfo")
            return
        levels = info.api_range
        if not _is_range(levels) or not isinstance(info.name, str):
            text = f"propolis_plugin() returned {info!r}: api is a level or (lowest, highest)"
            report.reject("api", text)
            return
        oldest, newest = levels
        report.description = str(info.description)
        if newest < OLDEST_API_LEVEL or oldest > API_LEVEL:
            act = "upgrade propolis-core" if oldest > API_LEVEL else f"upgrade {name}"
            report.reject(
                "api",
                f"it supports API levels {oldest} to {newest}, this core {OLDEST_API_LEVEL} to "
                f"{API_LEVEL}: {act}",
            )
        elif plugin_name(info.name) != name:
            report.reject("name", f"its entry point is {name!r} but it calls itself {info.name!r}")
        elif newest < API_LEVEL:
            self._deprecate(report, newest)

    @staticmethod
    def _deprecate(report: PluginReport, newest: int) -> None:
        """Tell the user, while it still loads, that a coming version will not load it."""
        candidate = report.candidate
        events.PLUGIN_DEPRECATED.emit(
            plugin=candidate.name,
            distribution=candidate.distribution,
            version=candidate.version,
            api=newest,
            current=API_LEVEL,
            remedy=f"upgrade {candidate.distribution}",
        )

    def _forget(self, name: str) -> None:
        plugin = self._plugins.pop(name, None)
        if plugin is not None:
            self._pm.unregister(plugin)

    def _announce(self, report: PluginReport) -> None:
        it = report.candidate
        if report.status == "loaded":
            events.PLUGIN_LOADED.emit(
                plugin=it.name, distribution=it.distribution, version=it.version, hooks=report.hooks
            )
            return
        rejected = report.status == "rejected"
        if rejected and self.strict:
            msg = f"plugin {it}: {report.reason}; disable_plugins = {it.name} leaves it out, and "
            msg += "without strict it is a warning"
            raise PluginError(msg) from report.exception
        # A plugin that says no is as it should be: this machine lacks what it needs.
        if rejected and report.stage == "probe" and report.answered:
            event = events.PLUGIN_UNAVAILABLE
        else:
            event = events.PLUGIN_REJECTED if rejected else events.PLUGIN_DISABLED
        event.emit(
            plugin=it.name,
            distribution=it.distribution,
            version=it.version,
            stage=report.stage,
            reason=report.reason,
        )


def load_object(value: str) -> Any:
    """Import what an entry point names: ``module`` or ``module:attribute.path``."""
    module, _, attributes = value.partition(":")
    found: Any = importlib.import_module(module.strip())
    for name in filter(None, attributes.strip().split(".")):
        found = getattr(found, name)
    return found


@contextmanager
def _told_if_slow(candidate: Candidate, doing: str) -> Iterator[None]:
    """Name the plugin whose code does not return: it cannot be stopped, only waited for."""

    def tell() -> None:
        events.PLUGIN_SLOW.emit(
            plugin=candidate.name,
            distribution=candidate.distribution,
            version=candidate.version,
            doing=doing,
            seconds=PATIENCE,
        )

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_collection(hook: str) -> bool:
    return hook in ("propolis_devices", "propolis_ops", "propolis_doctor_checks")


def _is_range(levels: Any) -> bool:
    """Whether a plugin's API levels are what :class:`PluginInfo` says they are."""
    return (
        isinstance(levels, tuple)
        and len(levels) == 2
        and all(isinstance(level, int) for level in levels)
        and levels[0] <= levels[1]
    )


__all__ = ["PluginHost", "PluginReport", "load_object"]
