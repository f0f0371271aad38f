"""``propolis replay``: run one saved call again."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli._common import json_option
from propolis.cli._common import print_json
from propolis.cli._common import settings
from propolis.cli.inspect import device_option
from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis_conformance.cli import timeout_option


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.config import Config
    from propolis_conformance.drift import HostTensor
    from propolis_conformance.drift import Replay
    from propolis_conformance.drift import SavedCall


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@device_option
@timeout_option("call")
@click.option("--here", is_flag=True, help="Run it in this process, for a debugger.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    *,
    file: Path,
    device: str | None,
    timeout: float,
    here: bool,
    as_json: bool,
) -> None:
    """
    Run the call saved in FILE and judge it; exit code 1 when it fails.

    It runs on the device it was saved from, where this machine has that, in a process of its
    own: one that aborts or hangs has failed.  `propolis --op OP=PLUGIN replay FILE` chooses
    who runs it.
    """
    from propolis_conformance.drift import load  # noqa: PLC0415  (not for --help)

    call = load(file)
    config = settings(ctx, device=device)
    if not as_json:
        click.echo("\n".join(_saved(call)))
        sys.stdout.flush()  # the call may end the process
    if here:
        found = judged(call, config, device, _elsewhere)
    else:
        found = _apart(file, call, config, device, timeout)
    if as_json:
        print_json(found["report"])
    else:
        click.echo("\n".join(found["lines"]))
    if not found["report"]["passed"]:
        ctx.exit(1)


def judged(
    call: SavedCall, config: Config, device: str | None, alive: Callable[..., None]
) -> dict[str, Any]:
    """
    Run a call in this process: ``lines`` for people and a ``report`` for machines.

    Args:
        call: what to run.
        config: the settings.
        device: where; None for where it was saved, or the settings' device.
        alive: told where it runs and who is to run it, and after each run whether it goes on
            ``running``.
    """
    from propolis.dispatch import DispatchTable  # noqa: PLC0415
    from propolis.runtime import Runtime  # noqa: PLC0415
    from propolis_conformance.drift import replay as run  # noqa: PLC0415  (not for --help)

    runtime = Runtime.start(config)
    saved = str(call.facts.get("device", config.device))
    present = {properties.id for properties in runtime.devices()}
    chosen = device or (saved if saved in present else config.device)
    target = runtime.device(chosen)
    winner = DispatchTable.of(target).trace(call.spec, call.spec.key(*call.kinds)).winner
    alive(
        running=True,
        device=chosen,
        by=str(winner.provenance) if winner is not None else "",
        missing=saved if device is None and saved not in present else "",
    )
    found = run(call, runtime, target, after_run=lambda more: alive(running=more))
    return {"lines": _outcome(call, found, chosen), "report": _report(call, found, chosen)}


def _elsewhere(*, missing: str = "", device: str = "", **_: Any) -> None:
    """Say so where a call does not run on the device it was saved from."""
    if missing:
        click.echo(f"saved from {missing}, which is not here: running on {device}", err=True)


def _apart(
    file: Path, call: SavedCall, config: Config, device: str | None, timeout: float
) -> dict[str, Any]:
    """As :func:`judged`, in a process of its own, whose death or silence is a verdict."""
    from propolis_conformance.process import START  # noqa: PLC0415  (not for --help)
    from propolis_conformance.process import ChildEndedError  # noqa: PLC0415
    from propolis_conformance.process import ChildProcess  # noqa: PLC0415

    chosen = config.model_dump(mode="json")
    if config.log_format == "auto" and sys.stderr.isatty():
        chosen["log_format"] = "console"
    child = ChildProcess("propolis_conformance.cli.replay_child", timeout)
    where: dict[str, Any] = {}
    try:
        child.send(file=str(file.absolute()), device=device, settings=chosen)
        said = child.receive(max(timeout, START))
        if said.get("busy"):
            where = said
            _elsewhere(**where)
        while said.get("busy"):
            # The truth is ours to compute, however long that takes.
            said = child.receive(None if said["running"] else math.inf)
    except ChildEndedError as exc:
        if not where:
            msg = f"{file} cannot be replayed: loading the plugins {exc}"
            raise PluginError(msg) from exc
        return _ended(call, where, f"{exc.check}: it {exc}")
    finally:
        child.close()
        click.echo(child.said, nl=False, err=True)  # log lines, and what plugins print
    if "bug" in said:
        bug = RuntimeError(said["bug"].splitlines()[-1])
        bug.add_note(said["bug"])
        raise bug
    if "refused" in said:
        raise (UsageError if said["exit_code"] == UsageError.exit_code else PluginError)(
            said["refused"]
        )
    found: dict[str, Any] = said["found"]
    return found


def _ended(call: SavedCall, where: dict[str, Any], problem: str) -> dict[str, Any]:
    """What there is to say of a call that did not come back."""
    from propolis_conformance.drift import Replay  # noqa: PLC0415  (not for --help)

    found = Replay(call, problems=[problem])
    report = _report(call, found, where["device"])
    who = where["by"] or "nobody known"
    lines = [f"ran on {where['device']} by {who}, not to the end", f"failed: {problem}"]
    return {"lines": lines, "report": {**report, "by": where["by"], "differing_bytes": None}}


def _saved(call: SavedCall) -> list[str]:
    """What is in the file."""
    facts = call.facts
    who = facts.get("by") or facts.get("plugin") or "nobody known"
    layer = f", layer {facts['layer']}" if facts.get("layer") else ""
    lines = [f"{call}: saved from {facts.get('device', 'no known device')}, {who}{layer}"]
    if facts.get("failure"):
        lines.append(f"  failed then: {facts['failure']}")
    lines += [f"  {name}: {_tensor(tensor)}" for name, tensor in call.tensors.items()]
    return lines + [f"  {name} = {value}" for name, value in call.attributes.items()]


def _outcome(call: SavedCall, found: Replay, device: str) -> list[str]:
    """How it went."""
    from propolis_conformance.drift.measure import tolerance_text  # noqa: PLC0415

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


def _report(call: SavedCall, found: Replay, device: str) -> dict[str, Any]:
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
