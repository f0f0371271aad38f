"""``propolis drift``: a real model's calls against their truth in float64."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import print_table
from propolis.errors import UsageError
from propolis_conformance.cli import Finite
from propolis_workers.llm.cli import dtype_option
from propolis_workers.llm.cli import load
from propolis_workers.terminal import model_option


if TYPE_CHECKING:
    from propolis_conformance.drift import Drift
    from propolis_conformance.drift.watch import Cell

PROMPT = "What is the capital of France?"
# The other measures are in --json: this fits a terminal of 100 columns.
_COLUMNS = ("max abs", "max rel", "NMSE", "of limit")


@click.command()
@click.argument("prompt", default=PROMPT)
@model_option
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
@click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores.")
@dtype_option
@click.option(
    "-n",
    "--tokens",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Tokens to draw.",
)
@click.option(
    "--sample",
    type=Finite(0, 1),
    default=0.1,
    show_default=True,
    help="The share of calls to judge; each op's first in each layer and shape always is.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the choice of calls.",
)
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Save the worst call of each op there, for `propolis replay`.",
)
@json_option
@click.pass_context
def drift(
    ctx: click.Context,
    /,
    prompt: str,
    as_json: bool,
    tokens: int,
    sample: float,
    seed: int,
    save: Path | None,
    **options: Any,
) -> None:
    """
    Run a model on PROMPT and judge a sample of its calls; exit code 1 if one is off.

    Or if the logits are NaN, which is told with whom that leaves: an op or the weights.

    Each call judged is computed again in float64 on the CPU, from the inputs that it was
    given: errors do not add up from layer to layer.  One that is off gets the right result
    before the model goes on, so that what comes after it is not blamed.  The worst of each
    op and of each layer is printed.
    """
    # Not for --help.
    from propolis_conformance.drift import Drift  # noqa: PLC0415
    from propolis_conformance.drift.facts import oracle  # noqa: PLC0415
    from propolis_workers.llm.drift import run  # noqa: PLC0415

    if save is not None and save.exists() and not save.is_dir():
        msg = f"--save {save}: it is a file, not a folder"
        raise UsageError(msg)
    if save is not None:
        try:  # before minutes of judging, whose table would be lost
            save.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            msg = f"--save {save}: it cannot be made: {exc.strerror}; give another folder"
            raise UsageError(msg) from exc
    model, runtime = load(ctx, options, quiet=as_json, placement=False)
    has_template = model.tokenizer.chat_template is not None
    text = model.render([{"role": "user", "content": prompt}]) if has_template else prompt
    ids = model.tokenizer.encode(text, add_special=not has_template)
    watch = Drift(model.model.device, oracle(runtime), sample=sample, seed=seed)
    started = time.perf_counter()
    drawn = run(model, ids, watch, tokens=tokens)
    seconds = time.perf_counter() - started
    nan = len(drawn) < tokens and not model.tokenizer.eos_ids.intersection(drawn[-1:])
    saved = _save(watch, save) if save is not None else {}
    if as_json:
        print_json(
            {
                "model": model.path.name,
                "device": watch.device.id,
                "dtype": model.config.dtype.name,
                "prompt_tokens": len(ids),
                "text": model.tokenizer.decode(drawn, continues=True),
                "seconds": seconds,
                "sample": sample,
                "seed": seed,
                "failed": watch.failed,
                "nan": nan,
                "ops": {op: cell.as_dict() for op, cell in watch.by_op().items()},
                "layers": {
                    layer: {op: cell.as_dict() for op, cell in cells.items()}
                    for layer, cells in watch.by_layer().items()
                },
                "saved": saved,
            }
        )
    else:
        _print(watch, len(ids), len(drawn), seconds)
        for op, path in saved.items():
            click.echo(f"saved: the worst {op}: {path}")
        if nan:
            click.echo(f"the logits after {len(drawn)} tokens are NaN: {_suspect(watch, sample)}")
    if watch.failed or nan:
        ctx.exit(1)


def _suspect(watch: Drift, sample: float) -> str:
    if watch.failed:
        return "so is what an op above gave"
    if sample < 1:
        return "no op that was judged is wrong; --sample 1 judges all, and if none is, weights are"
    return "no op is wrong, so weights are: get the model again"


def _print(watch: Drift, prompt: int, drawn: int, seconds: float) -> None:
    print_table(
        ("op", "judged", "failed", *_COLUMNS, "worst in", "by"),
        (
            (
                op,
                f"{c.checked} of {c.calls}",
                str(c.failed),
                *_errors(c),
                _name(c.layer),
                c.by.partition(" (")[0],  # the version is in --json
            )
            for op, c in watch.by_op().items()
        ),
    )
    click.echo()
    rows = []
    for layer, cells in watch.by_layer().items():
        op, worst = next(iter(cells.items()))
        judged = sum(cell.checked for cell in cells.values())
        failed = sum(cell.failed for cell in cells.values())
        rows.append((_name(layer), str(judged), str(failed), op, *_errors(worst)))
    print_table(("layer", "judged", "failed", "worst op", *_COLUMNS), rows)
    cells = watch.by_op()
    calls = sum(cell.calls for cell in cells.values())
    judged = sum(cell.checked for cell in cells.values())
    unknown = sum(cell.unknown for cell in cells.values())
    click.echo(
        f"\n{judged} of {calls} calls on {watch.device.id} judged, {prompt} tokens of prompt and "
        f"{drawn} drawn, in {seconds:.1f} s: {watch.failed} beyond tolerance"
        + (f", {unknown} without a known truth" if unknown else "")
    )
    for op, cell in cells.items():
        if cell.failed:
            where = _name(cell.layer)
            click.echo(f"beyond tolerance: {op} by {cell.by} in {where}: {cell.errors.message}")


def _name(layer: str) -> str:
    """A layer for people."""
    return f"layer {layer}" if layer.isdigit() else layer or "the model"


def _errors(cell: Cell) -> tuple[str, ...]:
    e = cell.errors
    if not cell.checked:
        return ("",) * len(_COLUMNS)
    return tuple(f"{number:.2g}" for number in (e.max_abs, e.max_rel, e.nmse, e.ratio))


def _save(watch: Drift, folder: Path) -> dict[str, str]:
    """The worst call of each op, in files of the folder."""
    from propolis_conformance.drift.file import free_path  # noqa: PLC0415
    from propolis_conformance.drift.file import save  # noqa: PLC0415

    saved = {}
    for op, (_, call) in sorted(watch.worst.items()):
        path = free_path(folder, op, call.kinds[0].name)
        save(call, path)
        saved[op] = str(path)
    return saved
