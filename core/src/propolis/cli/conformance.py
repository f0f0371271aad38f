"""``propolis conformance``: does a plugin do what the ops say?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from propolis.cli._common import settings


if TYPE_CHECKING:
    from propolis.conformance import Result

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("plugin")
@click.option("--quick", is_flag=True, help="Leave random cases, and pairs of dtypes, out.")
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only this op; may be repeated.")
@click.option("--device", metavar="ID", help="Where: cpu, rocm:0; the first it has ops for.")
@click.option("--json", "as_json", type=_FILE, metavar="FILE", help="Write the report as JSON.")
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write it for people.")
@click.option("--expect", type=_FILE, metavar="FILE", help='Known failures: op = "reason".')
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random numbers.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="A case that takes longer hangs.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long all may take, about; a minute with --quick, else ten.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True, max=1),
    metavar="SHARE",
    help="Of large sizes and random cases, for slow devices; what the device says, or 1.",
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
    expect: Path | None,
    seed: int,
    timeout: float,
    seconds: float | None,
    scale: float | None,
    strict: bool,
) -> None:
    """
    Judge every op and dtype of PLUGIN; exit code 1 when something fails.

    Cases run in processes of their own: a crash is one failure, not the end.
    """
    # Not for --help.
    import json  # noqa: PLC0415

    from propolis.conformance import Request  # noqa: PLC0415
    from propolis.conformance import expect as expectations  # noqa: PLC0415
    from propolis.conformance import report as reports  # noqa: PLC0415
    from propolis.conformance import run  # noqa: PLC0415

    settings(ctx)
    known = expectations.load(expect) if expect else {}
    request = Request(plugin, device, seed, quick, timeout, scale, seconds)
    started = time.monotonic()
    results, facts = run(request, ops)
    results = expectations.apply(results, known)
    report = reports.build(results, facts, request, time.monotonic() - started)
    if as_json is not None:
        as_json.write_text(json.dumps(report, indent=2) + "\n")
    if markdown is not None:
        markdown.write_text(reports.markdown(report))
    for result in results:
        _print(result)
    click.echo("{plugin} ({distribution} {version}) on {device}".format(**facts))
    click.echo(reports.summary(report))
    counts = report["counts"]
    wrong = counts["failed"]
    if strict:
        wrong += counts["declined"] + counts["no recipe"] + counts["no truth"] + report["cut"]
    if wrong:
        ctx.exit(1)


def _print(result: Result) -> None:
    if result.status == "passed":
        return
    check = f" {result.check}:" if result.check and result.status == "failed" else ""
    click.echo(f"{result.status}: {result.unit}:{check} {result.message}")
    if result.case:
        click.echo(f"        {result.case}")
