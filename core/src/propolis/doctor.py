"""
The checks of ``propolis doctor``.

Phase 1 imports no plugin, so it works when a plugin is what is broken.  Phase 2
loads plugins as a worker does and runs the checks they contribute.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import importlib_metadata

from propolis import __version__
from propolis.errors import PropolisError
from propolis.plugins.discovery import ESSENTIAL
from propolis.plugins.discovery import discover
from propolis.plugins.discovery import duplicates
from propolis.plugins.discovery import policy
from propolis.records import CheckResult
from propolis.records import DoctorCheck


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.config import Config
    from propolis.plugins.discovery import Candidate
    from propolis.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The result of one check.

    Attributes:
        phase: 1 or 2.
        name: the check's.
        result: what it found.
    """

    phase: int
    name: str
    result: CheckResult


def examine(load_config: Callable[[], Config], *, import_plugins: bool = True) -> Iterator[Finding]:
    """
    Run all checks, one after the other; a check that raises is an error of its own.

    Args:
        load_config: gives the settings; its failure is a finding.
        import_plugins: whether to go on to phase 2.
    """
    yield Finding(1, "python", _python())
    yield from _distributions()
    try:
        config = load_config()
    except PropolisError as exc:
        bad = CheckResult("error", str(exc), "correct the setting")
        yield Finding(1, "settings", bad)
        return
    yield Finding(1, "settings", _settings())
    candidates = discover()
    yield Finding(1, "plugins.installed", _installed(candidates))
    yield Finding(1, "plugins.names", _names(candidates))
    yield Finding(1, "plugins.policy", _policy(candidates, config))
    yield Finding(1, "cache", _cache(config))
    if import_plugins:
        yield from _phase_two(config)


def _python() -> CheckResult:
    found = f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}"
    return CheckResult("ok", found)


def _distributions() -> Iterator[Finding]:
    """Every installed distribution of ours has core's version: they are released together."""
    for distribution in sorted(
        importlib_metadata.distributions(),
        key=lambda d: (d.metadata["Name"] or "").lower(),
    ):
        name = (distribution.metadata["Name"] or "").lower()
        if not name.startswith("propolis-") or name == "propolis-core":
            continue
        first_party = name in ("propolis-workers", *ESSENTIAL.values())
        if first_party and distribution.version != __version__:
            result = CheckResult(
                "error",
                f"{distribution.version}, but propolis-core is {__version__}",
                f"pip install '{name}=={__version__}'",
            )
        else:
            result = CheckResult("ok", distribution.version)
        yield Finding(1, f"distribution.{name}", result)


def _settings() -> CheckResult:
    from propolis.config import unknown_variables  # noqa: PLC0415  (loaded with the settings)

    unknown = list(unknown_variables(os.environ))
    if not unknown:
        return CheckResult("ok", "settings are valid")
    names = ", ".join(name for name, _ in unknown)
    near = ", ".join(sorted({match for _, matches in unknown for match in matches}))
    remedy = f"unset them, or correct the names ({near})" if near else "unset them"
    return CheckResult("warning", f"variables that mean nothing: {names}", remedy)


def _installed(candidates: list[Candidate]) -> CheckResult:
    missing = ESSENTIAL.keys() - {c.name for c in candidates if c.is_essential}
    if missing:
        name = ESSENTIAL[min(missing)]
        return CheckResult(
            "error",
            f"{name} is not installed: ops that no other plugin serves cannot run",
            f"pip install {name}",
        )
    return CheckResult("ok", ", ".join(map(str, candidates)))


def _names(candidates: list[Candidate]) -> CheckResult:
    claims = duplicates(candidates)
    if not claims:
        return CheckResult("ok", "every plugin's name is its own")
    name, owners = next(iter(claims.items()))
    who = " and ".join(c.distribution for c in owners)
    return CheckResult("error", f"{name} is claimed by {who}", "uninstall one of them")


def _policy(candidates: list[Candidate], config: Config) -> CheckResult:
    try:
        refusals = policy(candidates, config)
    except PropolisError as exc:
        return CheckResult("error", str(exc), "correct the list")
    if refusals:
        return CheckResult("ok", "; ".join(f"{c.name}: {why}" for c, why in refusals.items()))
    return CheckResult("ok", "no plugin is disabled")


def _cache(config: Config) -> CheckResult:
    folder = config.cache_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        return CheckResult(
            "warning",
            f"{folder} cannot be written ({exc.strerror}): every start asks all probes again",
            "set PROPOLIS_CACHE_DIR to a folder that can",
        )
    return CheckResult("ok", f"{folder} can be written")


def _phase_two(config: Config) -> Iterator[Finding]:
    from propolis.runtime import Runtime  # noqa: PLC0415  (phase 1 loads no plugin code)

    try:
        runtime = Runtime.start(config, reprobe=True)
    except PropolisError as exc:
        yield Finding(2, "plugins.load", CheckResult("error", str(exc), "see the message"))
        return
    for source, checks in runtime.plugins.each("propolis_doctor_checks"):
        for check in checks:
            yield Finding(2, _name(check, source.plugin), _run(check))
    yield Finding(2, "devices", _devices(runtime))
    # Last, because a hook that raises rejects its plugin.
    for report in runtime.plugins.reports:
        name = f"plugin.{report.candidate.name}"
        if report.status == "rejected":
            text = f"rejected at {report.stage}: {report.reason}"
            remedy = f"fix it, or disable it: PROPOLIS_DISABLE_PLUGINS={report.candidate.name}"
            yield Finding(2, name, CheckResult("error", text, remedy))
        elif report.status == "loaded":
            yield Finding(2, name, CheckResult("ok", f"loaded: {report.description}"))


def _name(check: object, plugin: str) -> str:
    return check.name if isinstance(check, DoctorCheck) else f"{plugin}.check"


def _run(check: object) -> CheckResult:
    if not isinstance(check, DoctorCheck):
        text = f"the plugin gave a {type(check).__name__}, not a DoctorCheck"
        return CheckResult("error", text, "report it to the plugin's author")
    try:
        return check.run()
    except Exception as exc:  # noqa: BLE001  (whatever a stranger's check raises)
        text = f"the check raised {type(exc).__name__}: {exc}"
        return CheckResult("error", text, "report it to the plugin's author")


def _devices(runtime: Runtime) -> CheckResult:
    try:
        found = runtime.devices()
    except Exception as exc:  # noqa: BLE001  (whatever a stranger's provider raises)
        text = f"listing devices raised {type(exc).__name__}: {exc}"
        return CheckResult("error", text, "see the plugin's own checks above")
    return CheckResult("ok", "; ".join(f"{p.id} {p.name} ({p.arch})" for p in found))
