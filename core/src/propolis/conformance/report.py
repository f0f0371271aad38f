"""What a user with a card sends: everything that decides how the plugin behaved."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis.conformance.judge import Result
    from propolis.conformance.pool import Request

STATUSES = ("passed", "failed", "expected", "declined", "no recipe", "no truth")


def build(
    results: Sequence[Result],
    facts: Mapping[str, Any],
    request: Request,
    seconds: float,
) -> dict[str, Any]:
    """
    The report as JSON fields.

    Args:
        results: of every unit.
        facts: about plugin and device, from the child that loaded them.
        request: what was asked for.
        seconds: how long all took.
    """
    tally = Counter(result.status for result in results)
    return {
        "plugin": {name: facts[name] for name in ("plugin", "distribution", "version")},
        "device": {
            "id": facts["device"],
            "name": facts["device_name"],
            "arch": facts["arch"],
            **facts["device_extra"],
        },
        "host": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            **_driver(),
        },
        "libraries": _libraries(facts["distribution"]),
        "seed": request.seed,
        "quick": request.quick,
        "seconds": round(seconds, 1),
        "counts": {status: tally[status] for status in STATUSES},
        "cases": sum(result.cases for result in results),
        "cut": sum(result.cut for result in results),
        "scale": request.scale,
        "results": [result.as_dict() for result in results],
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    plugin, device = report["plugin"], report["device"]
    lines = [
        f"# Conformance of {plugin['plugin']} ({plugin['distribution']} {plugin['version']})",
        "",
        f"On {device['id']}: {device['name']} ({device['arch']}).  {summary(report)}",
        "",
        "| | |",
        "| --- | --- |",
    ]
    for title in ("device", "host", "libraries"):
        lines += [f"| {title}: {name} | {value} |" for name, value in report[title].items()]
    lines += [
        f"| seed | {report['seed']} |",
        f"| quick | {report['quick']} |",
        "",
        "| op | result | cases | truth |",
        "| --- | --- | --- | --- |",
    ]
    for result in report["results"]:
        truth = ", ".join(result["truth"])
        lines.append(f"| {result['unit']} | {_outcome(result)} | {result['cases']} | {truth} |")
    told = [r for r in report["results"] if r["status"] != "passed"]
    if told:
        lines += ["", "## What is not passed", ""]
    for result in told:
        lines.append(f"- **{result['unit']}**: {_outcome(result)}: {result['message']}")
        if result["case"]:
            lines.append(f"  `{result['case']}`")
    return "\n".join(lines) + "\n"


def summary(report: Mapping[str, Any]) -> str:
    """Counts in one line."""
    counts = ", ".join(f"{n} {status}" for status, n in report["counts"].items() if n)
    total = len(report["results"])
    said = f"{total} op x dtype: {counts or 'nothing to judge'} ({report['cases']} cases)"
    if report["cut"]:
        said += f"; {report['cut']} not to the end: time was up (--seconds)"
    return said


def _outcome(result: Mapping[str, Any]) -> str:
    status = str(result["status"])
    return f"{status}: {result['check']}" if result["check"] and status == "failed" else status


def _libraries(distribution: str) -> dict[str, str]:
    found = {}
    for name in dict.fromkeys((distribution, "propolis-core", "propolis-cpu-ref", "numpy")):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _driver() -> dict[str, str]:
    """The kernel's GPU driver, where there is one."""
    try:
        return {"amdgpu": Path("/sys/module/amdgpu/version").read_text().strip()}
    except OSError:
        return {}
