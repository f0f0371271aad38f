"""``propolis replay``: run one saved call again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import settings
from propolis.cli.inspect import device_option


if TYPE_CHECKING:
    from propolis.drift import Call
    from propolis.drift import HostTensor
    from propolis.drift import Replay
    from propolis.runtime import Runtime


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@json_option
@click.pass_context
def replay(ctx: click.Context, file: Path, device: str | None, as_json: bool) -> None:
    """
    Run the call saved in FILE and judge it; exit code 1 when it fails.

    It runs on the device it was saved from, where this machine has that.  `propolis --op
    OP=PLUGIN replay FILE` chooses who runs it.
    """
    from propolis.drift import load  # noqa: PLC0415  (not for --help)
    from propolis.drift import replay as run  # noqa: PLC0415
    from propolis.runtime import Runtime  # noqa: PLC0415

    call = load(file)
    config = settings(ctx, device=device)
    runtime = Runtime.start(config)
    chosen = device or _home(runtime, call, config.device)
    if not as_json:
        click.echo("\n".join(_saved(call)))
        sys.stdout.flush()  # the call may end the process
    found = run(call, runtime, runtime.device(chosen))
    if as_json:
        print_json(_report(call, found, chosen))
    else:
        click.echo("\n".join(_outcome(call, found, chosen)))
    if not found.passed:
        ctx.exit(1)


def _home(runtime: Runtime, call: Call, default: str) -> str:
    """The device that the call was saved from, if it is here."""
    saved = str(call.facts.get("device", default))
    if saved in {properties.id for properties in runtime.devices()}:
        return saved
    click.echo(f"saved from {saved}, which is not here: running on {default}", err=True)
    return default


def _saved(call: Call) -> list[str]:
    """What is in the file."""
    facts = call.facts
    who = facts.get("by") or facts.get("plugin") or "nobody known"
    layer = f", layer {facts['layer']}" if facts.get("layer") else ""
    lines = [f"{call}: saved from {facts.get('device', 'no known device')}, {who}{layer}"]
    if facts.get("failure"):
        lines.append(f"  failed then: {facts['failure']}")
    lines += [f"  {name}: {_tensor(tensor)}" for name, tensor in call.tensors.items()]
    return lines + [f"  {name} = {value}" for name, value in call.attributes.items()]


def _outcome(call: Call, found: Replay, device: str) -> list[str]:
    """How it went."""
    from propolis.drift.measure import tolerance_text  # noqa: PLC0415

    lines = [f"ran on {device} by {found.by or 'nobody to the end'}"]
    results = found.call.results if found.by else ()
    lines += [f"  result: {_tensor(tensor)}" for tensor in results]
    if found.differing is not None:
        same = "the same bytes as" if not found.differing else f"{found.differing} bytes unlike"
        lines.append(f"  {same} the result in the file")
    errors = found.errors
    if errors is not None and results:
        lines.append(
            f"  max abs {errors.max_abs:.3g}, max rel {errors.max_rel:.3g}, {errors.ulp:.3g} ulp, "
            f"NMSE {errors.nmse:.3g}, {errors.nonfinite} wrong NaN or inf; truth: {errors.source}"
        )
        allowed = tolerance_text(call.spec, results[0].dtype)
        lines.append(f"  {errors.ratio:.3g} of the tolerance ({allowed})")
    elif found.by:
        lines.append("  nobody knows the truth of this op")
    lines += [f"failed: {problem}" for problem in found.problems] or ["passed"]
    return lines


def _tensor(tensor: HostTensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    where = f" offset {tensor.offset}" if tensor.offset else ""
    return f"{shape} {tensor.dtype} strides {tensor.strides}{where}, {tensor.raw.nbytes} bytes"


def _report(call: Call, found: Replay, device: str) -> dict[str, Any]:
    return {
        "op": call.op,
        "dtypes": [kind.name for kind in call.kinds],
        "saved": dict(call.facts),
        "device": device,
        "by": found.by,
        "nbytes": call.nbytes + sum(r.raw.nbytes for r in found.call.results),
        "differing_bytes": found.differing,
        "errors": found.errors.as_dict() if found.errors else None,
        "problems": found.problems,
        "passed": found.passed,
    }
