"""A report for people: what came out first, then what failed, then where it ran."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from propolis import dtypes
from propolis.ops import catalogue
from propolis_conformance.keys import listed


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_conformance.judge import Result
    from propolis_conformance.report import Report

# The statuses that are told one by one, each under its heading.
_TOLD = {
    "failed": "Failed",
    "expected": "Known failures",
    "declined": "Declined: supports() took no case",
    "no recipe": "Not judged",
    "no truth": "Not judged for want of a truth",
}
_SLOWEST = 5


def markdown(report: Report) -> str:
    """The page."""
    plugin, device = report.plugin, report.device
    passed = sum(r.status == "passed" for r in report.results)
    where = f"{device.id}: {device.name} ({device.arch})"
    lines = [
        f"# Conformance of {plugin.plugin} ({plugin.distribution} {plugin.version})",
        "",
        f"**{passed} of {len(report.results)} op x dtype passed** on {where}.",
        "",
        f"{report.cases} cases in {report.seconds:.0f} s on {report.date}, by",
        f"`{report.whole_command}`.",
    ]
    if report.simulator:
        lines += ["", f"**Not on hardware**: {report.simulator} played the device."]
    if not report.complete:
        lines += ["", "**Not complete**: some ops or the random cases were left out."]
    for status, title in _TOLD.items():
        lines += _section(title, report, [r for r in report.results if r.status == status])
    lines += ["", "## Where", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in _facts(report)]
    lines += ["", "## Op by op", "", "| op | passed | not passed | cases | truth | seconds |"]
    lines += ["|---|---|---|---|---|---|", *_ops(report.results)]
    slowest = sorted(report.results, key=lambda r: -r.seconds)[:_SLOWEST]
    lines += ["", "Slowest: " + ", ".join(f"{r.unit} {r.seconds:.1f} s" for r in slowest) + "."]
    return "\n".join(lines) + "\n"


def _section(title: str, report: Report, results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    lines = ["", f"## {title} ({len(results)})"]
    for result in results:
        check = f": {result.check}" if result.check else ""
        lines += ["", f"**{result.unit}**{check}: {result.message}", ""]
        if result.case:
            lines.append(f"- smallest case: `{result.case}`")
        lines.append(f"- again: `{report.again(result.unit)}`")
    return lines


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    device = report.device
    yield "plugin", f"{report.plugin.plugin}, {report.plugin.distribution} {report.plugin.version}"
    yield "device", f"{device.id}, {device.name}, {device.arch}"
    yield from device.extra.items()
    yield from report.host.items()
    yield from report.libraries.items()


def _ops(results: Sequence[Result]) -> Iterator[str]:
    """A row an op: what passed of it and what did not."""
    ops: dict[str, list[Result]] = {}
    for result in results:
        ops.setdefault(result.unit.partition("[")[0], []).append(result)
    for op, judged in ops.items():
        bad = {_kinds(r) for r in judged if r.status != "passed"}
        good = {_kinds(r) for r in judged} - bad
        truth = ", ".join(dict.fromkeys(t for r in judged for t in r.truth))
        cells = [op, _named(op, good), _named(op, bad), sum(r.cases for r in judged), truth]
        seconds = math.fsum(r.seconds for r in judged)  # as all versions of Python add
        yield f"| {' | '.join(_cell(c) for c in cells)} | {seconds:.1f} |"


def _kinds(result: Result) -> str:
    return result.unit.partition("[")[2].partition("]")[0]


def _named(op: str, kinds: set[str]) -> str:
    """Dtypes by name, never "all": a report stays true when the catalogue has gained some."""
    chosen = {tuple(map(dtypes.parse_dtype, k.split(","))) for k in kinds}
    return listed(catalogue()[op], chosen)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
