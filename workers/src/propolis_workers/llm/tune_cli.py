"""``propolis tune llm``: who is fastest at the calls of a language model."""

from __future__ import annotations

from typing import Any
from typing import Final

import click

from propolis.errors import UsageError
from propolis_workers.llm.cli import dtype_option
from propolis_workers.llm.cli import load
from propolis_workers.terminal import ended_by_signals
from propolis_workers.terminal import model_option


_AFTER: Final = 4
"""Tokens after a prompt."""

_CONTEXT: Final = 64
"""Tokens that each of several sequences may have."""


@click.command("llm")
@model_option
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
@click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores.")
@dtype_option
@click.option(
    "--prompt",
    "prompts",
    type=click.IntRange(1),
    multiple=True,
    default=(32, 512),
    show_default=True,
    metavar="N",
    help="Tokens of a prompt; may be given several times.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 4, 16),
    show_default=True,
    metavar="N",
    help="Answers that are written at a time; may be given several times.",
)
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    prompts: tuple[int, ...],
    sequences: tuple[int, ...],
    **options: Any,
) -> None:
    """
    Measure the calls of a model's prompts and answers, and take who is fastest from then on.

    Where several implementations can do a call, each does it some hundred times.  What is found
    holds for models with calls of these sizes, until a plugin, a driver or the hardware changes.
    """
    from propolis_workers.llm.batch.engine import BatchEngine  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.batch.engine import Request  # noqa: PLC0415
    from propolis_workers.llm.sampling import SamplingParams  # noqa: PLC0415
    from propolis_workers.tuning import measuring  # noqa: PLC0415

    own = ctx.get_parameter_source("prompts") is not click.core.ParameterSource.DEFAULT
    tokens = max(prompts) + _AFTER
    model, runtime = load(ctx, options, quiet=False, placement=False, tokens=tokens)
    most = model.config.context_length - _AFTER
    if own and max(prompts) > most:
        msg = f"--prompt {max(prompts)} does not fit: this model has a context of "
        msg += f"{most + _AFTER} tokens; give at most {most}"
        raise UsageError(msg)
    prompts = tuple(dict.fromkeys(min(length, most) for length in prompts))
    BatchEngine(model, context=_CONTEXT, most=max(sequences))  # or all is measured in vain
    first = model.tokenizer.vocab_size // 3
    with ended_by_signals(), measuring(runtime, model.model.device):
        for length in prompts:
            engine = model.engine(length + _AFTER)
            engine.prefill([(first + i) % model.tokenizer.vocab_size for i in range(length)])
            for _ in range(2):
                engine.decode(first)
        for count in sequences:
            batch = BatchEngine(model, context=_CONTEXT, most=count)
            for number in range(count):
                prompt = [first + number, first]
                batch.add(
                    number, Request(prompt=prompt, params=SamplingParams(), max_tokens=_AFTER)
                )
            while batch.busy:
                batch.step()


__all__ = ["tune"]
