"""``propolis plugins``, ``devices``, ``ops``, ``explain``: what is there, who serves what."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import print_table
from propolis.cli._common import settings
from propolis.errors import OpError
from propolis.wording import did_you_mean


if TYPE_CHECKING:
    from propolis.dispatch import Trace
    from propolis.dtypes import DType
    from propolis.ops import OpSpec
    from propolis.plugins import PluginReport

device_option = click.option("--device", metavar="ID", help="The device: cpu, rocm:0.")


@click.command()
@click.option("--reprobe", is_flag=True, help="Ask every plugin's probe again.")
@json_option
@click.pass_context
def plugins(ctx: click.Context, reprobe: bool, as_json: bool) -> None:
    """List the installed plugins: loaded, disabled or rejected, and why."""
    from propolis.runtime import Runtime  # noqa: PLC0415  (not for --help)

    runtime = Runtime.start(settings(ctx), reprobe=reprobe)
    runtime.devices()  # a plugin that cannot list them is rejected
    reports = runtime.plugins.reports
    if as_json:
        print_json([_plugin(report) for report in reports])
        return
    print_table(
        ("plugin", "version", "distribution", "status", ""),
        (
            (
                r.candidate.name,
                r.candidate.version,
                r.candidate.distribution,
                r.status,
                r.reason or r.description,
            )
            for r in reports
        ),
    )


@click.command()
@json_option
@click.pass_context
def devices(ctx: click.Context, as_json: bool) -> None:
    """List the devices of this machine that plugins can use."""
    from propolis.runtime import Runtime  # noqa: PLC0415

    config = settings(ctx)
    runtime = Runtime.start(config)
    found = runtime.devices()
    threads = runtime.cpu.threads
    if as_json:
        print_json(
            [
                {
                    **p.extra,
                    **({"threads": threads} if p.kind == "cpu" else {}),
                    "id": p.id,
                    "name": p.name,
                    "arch": p.arch,
                    "total_memory": p.total_memory,
                }
                for p in found
            ]
        )
        return
    print_table(
        ("device", "name", "arch", "memory"),
        (
            (p.id, p.name, p.arch, f"{p.total_memory / 2**30:.1f} GiB" if p.total_memory else "?")
            for p in found
        ),
    )
    why = "the setting `threads`" if config.threads else "one per core that this process may use"
    click.echo(f"threads on the cpu: {threads}, {why}")


@click.command()
@device_option
@json_option
@click.pass_context
def ops(ctx: click.Context, device: str | None, as_json: bool) -> None:
    """List the ops, and who serves each on a device, dtype by dtype."""
    from propolis.dispatch import DispatchTable  # noqa: PLC0415
    from propolis.ops import catalogue  # noqa: PLC0415
    from propolis.runtime import Runtime  # noqa: PLC0415

    config = settings(ctx, device=device)
    table = DispatchTable.of(Runtime.start(config).device(config.device))
    rows = []
    for name, spec in sorted(catalogue().items()):
        first, *rest = spec.dtypes
        traces = {
            kind: table.trace(spec, spec.key(kind, *(_typical(spec, p) for p in rest)))
            for kind in _ordered(spec.dtypes[first])
        }
        served: dict[str, list[str]] = {}
        for kind, trace in traces.items():
            served.setdefault(str(trace.server), []).append(kind.name)
        rows.append((name, spec, served))
    if as_json:
        print_json(
            [
                {
                    "op": name,
                    "family": spec.family,
                    "summary": spec.summary,
                    "signature": f"{name}{spec.signature}",
                    "dispatches_on": {
                        p: [d.name for d in _ordered(k)] for p, k in spec.dtypes.items()
                    },
                    "served_by": served,
                }
                for name, spec, served in rows
            ]
        )
        return
    print_table(
        ("op", "served by", "summary"),
        ((name, _served(served), spec.summary.replace("``", "")) for name, spec, served in rows),
    )


@click.command()
@click.argument("op")
@click.option(
    "--dtype",
    metavar="A[,B]",
    help="Dtypes of the parameters the op dispatches on; one stands for all that take it.",
)
@device_option
@json_option
@click.pass_context
def explain(
    ctx: click.Context, op: str, dtype: str | None, device: str | None, as_json: bool
) -> None:
    """Show who serves OP, and why every other candidate does not."""
    from propolis.dispatch import DispatchTable  # noqa: PLC0415
    from propolis.ops import catalogue  # noqa: PLC0415
    from propolis.runtime import Runtime  # noqa: PLC0415

    spec = catalogue().get(op)
    if spec is None:
        hint = did_you_mean(op, catalogue(), otherwise="`propolis ops` lists them")
        msg = f"there is no op {op!r}; {hint}"
        raise OpError(msg)
    key = spec.key(*_wanted_key(spec, dtype))
    config = settings(ctx, device=device)
    runtime = Runtime.start(config)
    opened = runtime.device(config.device)
    table = DispatchTable.of(opened)
    trace = table.trace(spec, key)
    choices = runtime.tuned.of(table, spec, key, trace.chain)
    absent = [r for r in runtime.plugins.reports if r.status != "loaded"]
    if as_json:
        measured = {calls: asdict(choice) for calls, choice in choices.items()}
        not_loaded = [_plugin(r) for r in absent]
        print_json({**_trace(trace), "tuned": measured, "not_loaded": not_loaded})
        return
    _print_trace(trace, spec)
    for calls, choice in choices.items():
        click.echo(f"  measured, for {calls}: {choice}")
    for report in absent:
        click.echo(f"  {report.status}: plugin {report.candidate}: {report.reason}")


def _print_trace(trace: Trace, spec: OpSpec) -> None:
    kinds = ", ".join(f"{p}={d}" for p, d in zip(spec.dtypes, trace.key, strict=True))
    click.echo(f"{trace.op} ({kinds}) on {trace.device}: {trace.server}")
    for verdict in trace.verdicts:
        who = f"{verdict.impl.provenance} {verdict.impl.variant}".rstrip()
        click.echo(f"  {verdict.status}: {who}: {verdict.reason}")
        if verdict.impl.notes and verdict.status == "winner":
            click.echo(f"          {verdict.impl.notes}")
    if trace.parts is not None:
        why = trace.parts.refusal or "every part is served here"
        status = "rejected" if trace.parts.refusal else "standby" if trace.winner else "winner"
        click.echo(f"  {status}: decomposed into {trace.parts}: {why}")
    if not trace.verdicts:
        click.echo(f"  no loaded plugin implements {trace.op} for this kind of device")
    if trace.cpu is not None:
        click.echo(f"  last rung, with copies: cpu: {trace.cpu.server}")


def _served(served: dict[str, list[str]]) -> str:
    """Who serves an op; with dtypes only where they differ."""
    if len(served) == 1:
        return next(iter(served))
    return "; ".join(f"{who} ({' '.join(kinds)})" for who, kinds in served.items())


def _trace(trace: Trace) -> dict[str, Any]:
    return {
        "op": trace.op,
        "device": trace.device,
        "dtypes": [d.name for d in trace.key],
        "winner": str(trace.winner.provenance) if trace.winner else None,
        "candidates": [
            {
                "plugin": v.impl.provenance.plugin if v.impl.provenance else None,
                "distribution": v.impl.provenance.distribution if v.impl.provenance else None,
                "version": v.impl.provenance.version if v.impl.provenance else None,
                "variant": v.impl.variant,
                "priority": v.impl.priority,
                "status": v.status,
                "reason": v.reason,
                "notes": v.impl.notes,
            }
            for v in trace.verdicts
        ],
        "decomposed": _parts(trace),
        "cpu": _trace(trace.cpu) if trace.cpu else None,
    }


def _parts(trace: Trace) -> dict[str, Any] | None:
    parts = trace.parts
    return None if parts is None else {"parts": parts.names, "refusal": parts.refusal}


def _plugin(report: PluginReport) -> dict[str, Any]:
    return {
        "name": report.candidate.name,
        "distribution": report.candidate.distribution,
        "version": report.candidate.version,
        "entry_point": report.candidate.value,
        "status": report.status,
        "stage": report.stage,
        "reason": report.reason,
        "description": report.description,
        "hooks": report.hooks,
    }


def _ordered(kinds: frozenset[DType]) -> list[DType]:
    from propolis.dtypes import ALL  # noqa: PLC0415

    return [d for d in ALL if d in kinds]


def _typical(spec: OpSpec, parameter: str) -> DType:
    """f32 where the parameter takes it, else the first dtype it takes."""
    from propolis.dtypes import f32  # noqa: PLC0415

    allowed = spec.dtypes[parameter]
    return f32 if f32 in allowed else _ordered(allowed)[0]


def _wanted_key(spec: OpSpec, given: str | None) -> list[DType]:
    """The dtypes a user gave; where it is one, it stands for every parameter that takes it."""
    from propolis.dtypes import parse_dtype  # noqa: PLC0415

    if given is None:
        return [_typical(spec, p) for p in spec.dtypes]
    kinds = [parse_dtype(name) for name in given.split(",")]
    if len(kinds) > 1 or not any(kinds[0] in allowed for allowed in spec.dtypes.values()):
        return kinds
    return [kinds[0] if kinds[0] in k else _typical(spec, p) for p, k in spec.dtypes.items()]
