"""
``propolis llm``: answer prompts on the terminal.

The text goes to standard output and everything else to standard error, so that
answers can be piped.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis import dtypes
from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import settings
from propolis.dispatch import DispatchTable
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.terminal import loading_bar
from propolis_workers.terminal import model_option
from propolis_workers.terminal import standard_input
from propolis_workers.terminal import sum_up
from propolis_workers.terminal import utf8


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis import Runtime
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.generation import Generation
    from propolis_workers.llm.prompts import Prompts
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.session import LLM


@click.group()
def llm() -> None:
    """Run language models."""


dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "f32", "f16", "bf16"]),
    default="auto",
    show_default=True,
    help="Of activations, and weights that are no blocks; auto: as the file's matrices.",
)


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        model_option,
        click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0."),
        click.option(
            "--fallback",
            type=click.Choice(["allow", "warn", "error"]),
            help="What to do about ops that fall to the CPU.",
        ),
        click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores."),
        click.option("--metrics", is_flag=True, default=None, help="End with what each op cost."),
        click.option("--context", type=click.IntRange(1), metavar="N", help="Tokens in all."),
        click.option(
            "--kv-type",
            type=click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]),
            default="auto",
            show_default=True,
            help="What keys and values are kept in; auto: f16 where there are kernels for it.",
        ),
        dtype_option,
        click.option("-n", "--max-tokens", type=click.IntRange(1), default=512, show_default=True),
        click.option("-t", "--temperature", type=float, default=0.0, show_default=True),
        click.option("--top-k", type=int, default=0, show_default=True),
        click.option("--top-p", type=float, default=1.0, show_default=True),
        click.option("--min-p", type=float, default=0.0, show_default=True),
        click.option("--repetition-penalty", type=float, default=1.0, show_default=True),
        click.option(
            "--seed",
            type=click.IntRange(-1),
            help="Makes sampling repeatable; -1 for another each time.",
        ),
        click.option("--stop", "stops", multiple=True, metavar="TEXT", help="Ends the answer."),
        click.option("--system", metavar="TEXT", callback=utf8, help="The system message."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@llm.command()
@click.argument("prompt", callback=utf8)
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without a chat template.")
@_model_options
@json_option
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    prompt: str,
    raw: bool,
    as_json: bool,
    system: str | None,
    **options: Any,
) -> None:
    """
    Answer PROMPT once ("-" reads it from standard input).

    The prompt goes through the model's chat template, unless --raw is given.
    """
    if raw and system is not None:
        msg = "--system needs the chat template; leave out --raw"
        raise UsageError(msg)
    from propolis_workers.llm.answer import expect_prompt  # noqa: PLC0415  (not for --help)

    answer = _answer_options(options)  # wrong ones are found before a model is loaded
    text = standard_input() if prompt == "-" else prompt
    tokens = min(options["max_tokens"], options["context"] or options["max_tokens"])
    if not raw:
        _begin_templates()
    ids: list[int] = []

    def ask(prompts: Prompts, config: ModelConfig) -> None:
        """Find what is wrong with the prompt before weights are read."""
        longest = min(options["context"] or config.context_length, config.context_length)
        with _remedied(raised=longest < config.context_length):
            if raw:
                ids[:] = prompts.text(text, most=longest)
            else:
                messages = [{"role": "system", "content": system}] if system is not None else []
                ids[:] = prompts.chat([*messages, {"role": "user", "content": text}], most=longest)
            expect_prompt(ids, len(ids), longest, config, prompts.tokenizer)

    model, _ = load(ctx, options, quiet=as_json, tokens=tokens, before_weights=ask)
    generation = model.answer(ids, **answer)
    if as_json:
        for _ in generation:
            pass
        print_json(_report(model, generation))
        return
    _print_pieces(generation)
    _print_rates(generation)


@llm.command()
@_model_options
@click.option(
    "--no-history",
    "chat_history",
    flag_value=0,
    type=int,
    help="Neither keep nor show lines typed in other chats.",
)
@click.pass_context
def chat(ctx: click.Context, /, system: str | None, **options: Any) -> None:
    """
    Talk with a model; /help lists commands, /exit or Ctrl-D ends, Ctrl-C ends an answer.

    Only what is new of the conversation is computed each time.  Where lines come through a pipe and
    one of them cannot be answered, the others are, and the exit code is 2.
    """
    from propolis_workers.llm.chat import Chat  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.conversation import DEFAULT_CONTEXT  # noqa: PLC0415
    from propolis_workers.llm.conversation import Conversation  # noqa: PLC0415
    from propolis_workers.llm.lines import Lines  # noqa: PLC0415

    answer = _answer_options(options)
    tokens = options["context"] or DEFAULT_CONTEXT
    _begin_templates()
    model, runtime = load(ctx, options, quiet=False, tokens=tokens)
    conversation = Conversation(model, system=system, context=answer.pop("context"))
    lines = Lines(runtime.config.chat_history)
    talk = Chat(conversation, lines, _print_pieces, **answer)
    last = talk.run()
    click.echo(err=True)
    if last is not None:
        _print_rates(last)
    if talk.refused and not lines.typed:  # who types has seen it
        ctx.exit(UsageError.exit_code)


@contextmanager
def _remedied(*, raised: bool) -> Iterator[None]:
    """Name the option, where a prompt is too long for a context that can be raised."""
    try:
        yield
    except ModelError as exc:
        instead = ", or raise --context" if raised else ""
        raise ModelError(str(exc).replace(", or raise the context", instead)) from exc


def _begin_templates() -> None:
    from propolis_workers.llm.chat_template import begin  # noqa: PLC0415  (not for --help)

    begin()


def _print_pieces(generation: Generation) -> None:
    for piece in generation:
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()


def load(
    ctx: click.Context,
    options: dict[str, Any],
    *,
    quiet: bool,
    placement: bool = True,
    tokens: int = 1,
    before_weights: Callable[[Prompts, ModelConfig], None] | None = None,
) -> tuple[LLM, Runtime]:
    """
    The model and who runs it, with a progress bar while its weights are read.

    Args:
        ctx: of the command.
        options: the command's; those about loading are taken out.
        quiet: the answer is JSON, which says what is printed otherwise.
        placement: whether the command ends with the placement summary.
        tokens: what a sequence will have at least, which must fit into memory too.
        before_weights: as ``LLM.load`` has it.
    """
    from propolis.runtime import Runtime  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.session import LLM  # noqa: PLC0415

    names = ("model", "device", "fallback", "threads", "metrics", "chat_history")
    own = {name: options.pop(name, None) for name in names}
    types = {name: options.pop(name, "auto") for name in ("kv_type", "dtype")}
    config = settings(ctx, **own)
    runtime = Runtime.start(config)
    if placement:
        sum_up(ctx, runtime.device(config.device), quiet=quiet)
    with loading_bar(quiet=quiet) as progress:
        model = LLM.load(
            runtime=runtime,
            progress=progress,
            tokens=tokens,
            before_weights=before_weights,
            **types,
        )
    if not quiet:
        mib = sum(f.nbytes for f in model.source.tensors.values()) / 1e6
        note = f"loaded {model.path.name} ({mib:.0f} MB) in {model.load_seconds:.1f} s"
        dtype = model.config.dtype
        computed = "" if dtype is dtypes.f32 else f", computed in {dtype}"
        click.echo(f"{note} on {model.model.device.id}{computed}", err=True)
    return model, runtime


def _answer_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of one answer, as ``LLM.chat`` takes them; wrong ones are an error here."""
    from propolis_workers.llm.stopping import StopStrings  # noqa: PLC0415  (not for --help)

    StopStrings(options["stops"])
    return {
        "params": _params(options),
        "max_tokens": options["max_tokens"],
        "stops": options["stops"],
        "context": options["context"],
    }


def _params(options: dict[str, Any]) -> SamplingParams:
    from propolis_workers.llm.sampling import SamplingParams  # noqa: PLC0415

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    given = {name: options[name] for name in names}
    return SamplingParams(**given if given["seed"] != -1 else {**given, "seed": None})


def _print_rates(generation: Generation) -> None:
    finish = generation.finish
    click.echo(
        f"{finish.prompt_tokens} prompt tokens at {finish.prefill_rate:.1f}/s, "
        f"{len(finish.ids)} drawn at {finish.decode_rate:.1f}/s, {finish.stop_reason}",
        err=True,
    )


def _report(model: LLM, generation: Generation) -> dict[str, Any]:
    finish = generation.finish
    return {
        **asdict(finish),
        "prefill_tokens_per_second": finish.prefill_rate,
        "decode_tokens_per_second": finish.decode_rate,
        "model": str(model.path.name),
        "dtype": model.config.dtype.name,
        "load_seconds": model.load_seconds,
        "placement": DispatchTable.of(model.model.device).placement.as_dict(),
    }
