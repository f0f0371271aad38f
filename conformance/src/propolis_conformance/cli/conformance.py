"""``propolis conformance``: does a plugin do what the ops say?"""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from propolis.cli._common import settings
from propolis.errors import UsageError
from propolis.files import write_answer
from propolis_conformance.cli import Finite
from propolis_conformance.cli import timeout_option


if TYPE_CHECKING:
    from propolis_conformance import Result
    from propolis_conformance.report import Report

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _shard(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, int]:
    """``"2/3"``: the second of three parts."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", value)
    number, shards = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= shards:
        msg = f"{value!r} is no part: give K/N with K from 1 to N, as 1/2"
        raise click.BadParameter(msg)
    return number, shards


@click.command()
@click.argument("plugin")
@click.option("--quick", is_flag=True, help="Leave random cases, and pairs of dtypes, out.")
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only this op; may be repeated.")
@click.option("--device", metavar="ID", help="Where: cpu, rocm:0; the first it has ops for.")
@click.option("--json", "as_json", type=_FILE, metavar="FILE", help="Write the report as JSON.")
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write it for people.")
@click.option("--report", type=_FOLDER, metavar="FOLDER", help="Write both there, well named.")
@click.option("--expect", type=_FILE, metavar="FILE", help='Known failures: op = "reason".')
@click.option(
    "--save-failures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Save the smallest failing case of each op and dtype there, for `propolis replay`.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of all random numbers.",
)
@timeout_option("case")
@click.option(
    "--seconds",
    type=Finite(min=0, min_open=True),
    metavar="SECONDS",
    help="How long all may take, about; a minute with --quick, else ten.",
)
@click.option(
    "--scale",
    type=Finite(min=0, min_open=True, max=1),
    metavar="SHARE",
    help="Of large sizes and random cases, for slow devices; what the device says, or 1.",
)
@click.option(
    "--shard",
    callback=_shard,
    default="1/1",
    metavar="K/N",
    help="The K-th of N equal parts of all ops and dtypes, to judge on several machines.",
)
@click.option("--strict", is_flag=True, help="What is declined or not judged fails, too.")
@click.pass_context
def conformance(
    ctx: click.Context,
    plugin: str,
    *,
    quick: bool,
    ops: tuple[str, ...],
    device: str | None,
    as_json: Path | None,
    markdown: Path | None,
    report: Path | None,
    expect: Path | None,
    save_failures: Path | None,
    seed: int,
    timeout: float,
    seconds: float | None,
    scale: float | None,
    shard: tuple[int, int],
    strict: bool,
) -> None:
    """
    Judge every op and dtype of PLUGIN; exit code 1 when something fails, or nothing is judged.

    Cases run in processes of their own: a crash is one failure, not the end.
    """
    # Not for --help.
    from propolis_conformance import Request  # noqa: PLC0415
    from propolis_conformance import expect as expectations  # noqa: PLC0415
    from propolis_conformance import report as reports  # noqa: PLC0415
    from propolis_conformance import run  # noqa: PLC0415
    from propolis_conformance.report_page import markdown as page  # noqa: PLC0415

    settings(ctx)
    known = expectations.load(expect) if expect else {}
    if save_failures is not None:
        try:
            save_failures.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            msg = f"--save-failures {save_failures}: it cannot be made: {exc.strerror}"
            raise UsageError(msg) from exc
    saved = str(save_failures.absolute()) if save_failures is not None else None
    request = Request(plugin, device, seed, quick, timeout, saved, scale, seconds, shard)
    progress = _Progress()
    started = time.monotonic()
    try:
        results, facts = run(request, ops, progress=progress)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # no second one while it leaves
        progress.end()
        progress.tell()
        raise
    finally:
        progress.end()
    results = expectations.apply(results, known)
    made = reports.build(results, facts, request, time.monotonic() - started, ops)
    for result in results:
        _print(result, made)
    for line in () if ops else facts["left_out"]:
        click.echo(f"left out: {line}")
    if report is not None:
        _make(report)
        as_json = as_json or report / f"{made.name}.json"
        markdown = markdown or report / f"{made.name}.md"
    if as_json is not None:
        write_answer(as_json, made.json())
    if markdown is not None:
        write_answer(markdown, page(made))
    for file in (as_json, markdown) if report is not None else ():
        click.echo(f"report: {file}")
    click.echo("{plugin} ({distribution} {version}) on {device}".format(**facts))
    click.echo(made.summary)
    if not made.cases:
        msg = "no case was judged, so nothing is known: see what is left out, declined, or has "
        msg += "no recipe"
        click.echo(msg, err=True)
    if made.counts["failed"] or not made.cases or (strict and made.shortfall):
        ctx.exit(1)


class _Progress:
    """How far it is, on a terminal: a run takes minutes."""

    def __init__(self) -> None:
        self.judged = 0
        self.failed: list[Result] = []
        self.shown = sys.stderr.isatty()

    def __call__(self, result: Result) -> None:
        """One more."""
        self.judged += 1
        if result.status == "failed":
            self.failed.append(result)
        if self.shown:
            text = f"{self.judged} judged, {len(self.failed)} failed; now after {result.unit}"
            text = f"\r{text}\033[K"
            click.echo(text, nl=False, err=True)

    def tell(self) -> None:
        """What is known of a run that does not end."""
        for result in self.failed:
            click.echo(f"failed: {result.unit}: {result.check}: {result.message}", err=True)
        click.echo(f"{self.judged} judged, {len(self.failed)} failed, the others not", err=True)

    def end(self) -> None:
        """Leave the line empty."""
        if self.shown:
            click.echo("\r\033[K", nl=False, err=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        msg = f"{folder} cannot be made: {exc.strerror}"
        raise UsageError(msg) from exc


def _print(result: Result, report: Report) -> None:
    if result.status == "passed":
        return
    check = f" {result.check}:" if result.check and result.status == "failed" else ""
    click.echo(f"{result.status}: {result.unit}:{check} {result.message}")
    if result.case:
        click.echo(f"        {result.case}")
    if result.status == "failed":
        click.echo(f"        again: {report.again(result.unit)}")
