"""
The checks of ``propolis doctor``.

Phase 1 imports no plugin, so it works when a plugin is what is broken.  Phase 2
loads plugins as a worker does and runs the checks they contribute.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import tempfile
import threading
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING
from typing import get_args

import importlib_metadata
import numpy as np

from propolis._version import __version__
from propolis.errors import PropolisError
from propolis.host import usable_cores
from propolis.plugins import discovery
from propolis.plugins.quarantine_file import QuarantineFile
from propolis.plugins.tuned_file import TunedFile
from propolis.records import ESSENTIAL
from propolis.records import CheckResult
from propolis.records import CheckStatus
from propolis.records import DoctorCheck
from propolis.wording import describe
from propolis.wording import refused


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis.config import Config
    from propolis.plugins.discovery import Candidate
    from propolis.runtime import Runtime


_FIRST_PARTY = ("propolis-rocm-hip", "propolis-workers")


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The result of one check.

    Attributes:
        phase: 1 or 2.
        name: the check's.
        result: what it found.
        fields: more facts, for the JSON report.
    """

    phase: int
    name: str
    result: CheckResult
    fields: Mapping[str, str] = field(default_factory=dict)


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
        yield Finding(1, "settings", CheckResult("error", str(exc), "correct the setting"))
        return
    yield Finding(1, "settings", _settings(config))
    candidates = discovery.discover()
    yield Finding(1, "plugins.installed", _installed(candidates))
    yield Finding(1, "plugins.names", _names(candidates))
    yield Finding(1, "plugins.policy", _policy(candidates, config))
    yield Finding(1, "cache", _cache(config))
    yield Finding(1, "quarantine", _quarantine(config))
    if import_plugins:
        yield from _phase_two(config)


def _python() -> CheckResult:
    found = f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}"
    return CheckResult("ok", found)


def _distributions() -> Iterator[Finding]:
    """Every installed distribution of ours has core's version: they are released together."""
    # A folder without metadata is what an interrupted uninstall leaves.
    for name, version in sorted(set(map(discovery.identity, importlib_metadata.distributions()))):
        if not name.startswith("propolis-") or name == "propolis-core":
            continue
        first_party = name in (*_FIRST_PARTY, *ESSENTIAL.values())
        if first_party and version != __version__:
            result = CheckResult(
                "error",
                f"{version}, but propolis-core is {__version__}",
                f"pip install '{name}=={__version__}'",
            )
        else:
            result = CheckResult("ok", version)
        yield Finding(1, f"distribution.{name}", result)


def _settings(config: Config) -> CheckResult:
    from propolis.config import unknown_variables  # noqa: PLC0415  (loaded with the settings)

    unknown = list(unknown_variables(os.environ))
    if not unknown and config.threads > (cores := usable_cores()):
        said = f"{config.threads} threads on {cores} cores wait for each other"
        return CheckResult("warning", said, "threads = 0 takes one per core")
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
    claims = discovery.duplicates(candidates)
    if not claims:
        return CheckResult("ok", "every plugin's name is its own")
    text = "; ".join(
        f"{name} is claimed by {' and '.join(c.distribution for c in owners)}"
        for name, owners in claims.items()
    )
    return CheckResult("error", text, "uninstall one of them")


def _policy(candidates: list[Candidate], config: Config) -> CheckResult:
    try:
        refusals = discovery.policy(candidates, config)
    except PropolisError as exc:
        return CheckResult("error", str(exc), "correct the list")
    said = "; ".join(f"{c.name}: {why}" for c, why in refusals.items())
    return CheckResult("ok", said or "no plugin is disabled")


def _cache(config: Config) -> CheckResult:
    folder = config.cache_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))  # a full disk has room for a name
    except OSError as exc:
        return CheckResult(
            "warning",
            f"{folder} cannot be written ({exc.strerror}): every start asks all probes again, and "
            f"none knows what raised or crashed before",
            "set PROPOLIS_CACHE_DIR to a folder that can",
        )
    for fault in (QuarantineFile(folder).fault(), TunedFile(folder).fault()):
        if fault:
            return CheckResult("warning", *fault.rsplit(": ", 1))
    return CheckResult("ok", f"{folder} can be written")


def _quarantine(config: Config) -> CheckResult:
    file = QuarantineFile(config.cache_dir)
    file.collect()
    out = [f"{e.label} of {e.source}: {e.reason}" for e in file.entries()]
    serialised = [
        f"each call on {kind} will be waited for, to find out which failed: {why}"
        for kind, why in file.serial.kinds().items()
    ]
    if serialised and not out:
        return CheckResult("warning", "; ".join(serialised), "run again what failed")
    if not out:
        return CheckResult("ok", "no implementation is kept out")
    return CheckResult(
        "warning",
        "; ".join([f"kept out: {'; '.join(out)}", *serialised]),
        "tell the plugin's author; `propolis quarantine clear` lets them back",
    )


def _phase_two(config: Config) -> Iterator[Finding]:
    from propolis.runtime import Runtime  # noqa: PLC0415  (phase 1 loads no plugin code)

    # Doctor reports every plugin that is rejected; strict would end at the first.
    lenient = config.model_copy(update={"strict": False})
    try:
        runtime = Runtime.start(lenient, reprobe="unless hung")
    except PropolisError as exc:
        yield Finding(2, "plugins.load", CheckResult("error", str(exc), "see the message"))
        return
    host = runtime.plugins
    for source, checks in chain(host.each("propolis_doctor_checks"), host.refused_checks()):
        yield from _run_all(checks, source.plugin, config.probe_timeout)
    found = runtime.devices()
    # A plugin whose provider fails is rejected, and so has a finding of its own.
    named = "; ".join(f"{p.id} {p.name} ({p.arch})" for p in found)
    yield Finding(2, "devices", CheckResult("ok", named))
    for i in (p.id for p in found if p.kind != "cpu"):  # the CPU is in use
        trial = DoctorCheck(f"device.{i}", partial(_use, runtime, i), patience=3)
        yield from _run_all([trial], trial.name, config.probe_timeout)
    # Last, because a hook that raises rejects its plugin.
    for report in runtime.plugins.reports:
        name = f"plugin.{report.candidate.name}"
        if report.status == "rejected" and report.stage == "probe" and report.answered:
            text = f"not for this machine: {report.reason}"
            remedy = "nothing, unless it should be; its own checks above say more"
            yield Finding(2, name, CheckResult("skipped", text, remedy))
        elif report.status == "rejected":
            text = f"rejected at {report.stage}: {report.reason}"
            fixed = _lacking(report.candidate.distribution, report.reason) or "fix it"
            remedy = f"{fixed}, or disable it: PROPOLIS_DISABLE_PLUGINS={report.candidate.name}"
            yield Finding(2, name, CheckResult("error", text, remedy))
        elif report.status == "loaded":
            yield Finding(2, name, CheckResult("ok", f"loaded: {report.description}"))


def _lacking(distribution: str, reason: str) -> str:
    """What to install, where a plugin lacks a module; empty where it is something else."""
    found = re.search(r"No module named '(\w+)", reason)
    if found is None:
        return ""
    with contextlib.suppress(importlib_metadata.PackageNotFoundError):
        for name in discovery.required(importlib_metadata.distribution(distribution)):
            if discovery.module_of(name) == found[1].lower():
                return f"pip install {name}, which {distribution} requires"
    return f"install what brings the module {found[1]}"


def _run_all(checks: Iterable[object], plugin: str, limit: float) -> Iterator[Finding]:
    """A plugin's checks, ``limit`` seconds for most; after one that hangs none is run."""
    hung = False
    for check in checks:
        known = check if isinstance(check, DoctorCheck) else None
        name, patience = _name(check, plugin), known.patience if known else 1
        found = None if hung else _run_in_time(check, plugin, limit * patience)
        if found is not None:
            yield found
        elif hung:
            yield Finding(2, name, CheckResult("skipped", "an earlier check of the plugin hung"))
        else:
            hung = True
            text = f"the check hung: no answer in {limit * patience:g} s (of probe_timeout)"
            yield Finding(2, name, _broken(text))


def _run_in_time(check: object, plugin: str, limit: float) -> Finding | None:
    """What a check finds; None where it hangs: its thread is left behind."""
    done: list[Finding] = []
    thread = threading.Thread(target=lambda: done.append(_run(check, plugin)), daemon=True)
    thread.start()
    thread.join(limit)
    return done[0] if done else None


def _name(check: object, plugin: str) -> str:
    """What a finding is called: the plugin's name goes first, whatever the check says."""
    name = check.name if isinstance(check, DoctorCheck) else "check"
    own = name == plugin or name.startswith(f"{plugin}.")
    return name if own else f"{plugin}.{name}"


def _run(check: object, plugin: str) -> Finding:
    name = _name(check, plugin)
    if not isinstance(check, DoctorCheck):
        text = f"the plugin gave a {type(check).__name__}, not a DoctorCheck"
        return Finding(2, name, _broken(text))
    try:
        result: object = check.run()
    except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's check raises)
        result = _broken(f"the check raised {describe(exc)}")
        if (known := refused(exc)) is not None:
            result = CheckResult("error", *known)
    allowed = get_args(CheckStatus)
    if not isinstance(result, CheckResult):
        result = _broken(f"the check returned {result!r}, not a CheckResult")
    elif result.status not in allowed:
        said = f"the check's status is {result.status!r}; supported: {', '.join(allowed)}"
        result = _broken(f"{said}; it says: {result.summary}")
    elif result.status in ("warning", "error") and not result.remedy:
        result = replace(result, remedy="the check names none: ask the plugin's author")
    return Finding(2, name, result, check.fields)


def _broken(text: str) -> CheckResult:
    return CheckResult("error", text, "report it to the plugin's author")


def _use(runtime: Runtime, name: str) -> CheckResult:
    """Open a device, carry numbers there and back and multiply them, as a worker will."""
    from propolis import ops  # noqa: PLC0415  (phase 1 needs none)
    from propolis.dispatch import DispatchTable  # noqa: PLC0415  (nor this)
    from propolis.tensor import Tensor  # noqa: PLC0415  (nor this)

    given = np.arange(4096, dtype=np.float32).reshape(64, 64) % 7  # sums are exact in any order
    try:
        device = runtime.device(name)
        x = Tensor.from_numpy(given, device=device)
        before = {key: tally.calls for key, tally in runtime.fallbacks.tallies.items()}
        product, back = ops.matmul(x, x).numpy(), x.numpy()
    except PropolisError as exc:
        return CheckResult("error", str(exc), "see the checks of the plugin that brings it")
    who = DispatchTable.of(device).trace(ops.matmul, ops.matmul.key(x.dtype)).server
    if not (np.array_equal(back, given) and np.array_equal(product, given @ given)):
        remedy = "`propolis conformance` of that plugin finds which"
        return CheckResult("error", f"wrong numbers: a product by {who}", remedy)
    remedy = f"`propolis explain matmul --device {name}` says more"
    for key, tally in runtime.fallbacks.tallies.items():
        if tally.calls > before.get(key, 0):
            return CheckResult("warning", f"opened, but a product ran on the CPU: {key[1]}", remedy)
    return CheckResult("ok", f"numbers there and back, a product by {who}")
