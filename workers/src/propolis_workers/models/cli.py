"""
``propolis models``: get models, see, show and remove those that are here, and make others of them.

Exit codes are those of all commands; a pull that the network, the hub or the disk refused is 1.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import print_table
from propolis.cli import settings
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis.wording import did_you_mean
from propolis.wording import size_of
from propolis_workers.models.making import convert
from propolis_workers.models.making import quantize
from propolis_workers.terminal import filled
from propolis_workers.terminal import printable
from propolis_workers.terminal import watched


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.config import Config
    from propolis_workers.models.facts import Facts
    from propolis_workers.models.store import Local

_FIRST_LINE = 72
_INCOMPLETE = "incomplete: pull it again, or rm"


@click.group()
def models() -> None:
    """Get models, see, show and remove those that are here, and make others of them."""


models.add_command(convert)
models.add_command(quantize)


@models.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """
    List the models that are here.

    Those that were pulled, and those that a distribution carries.
    """
    from propolis_workers.models.store import Store  # noqa: PLC0415  (not for --help)

    config = settings(ctx)
    found = _here(config)
    if as_json:
        print_json([_row(one) for one in found])
        return
    if not found:
        folder = Store.of(config).folder
        click.echo(f"no models in {folder}: `propolis models pull NAME` gets one")
        return
    print_table(
        ("name", "short name", "quantisation", "size", "path"),
        (
            (
                printable(one.name),
                ", ".join(one.short_names),
                printable(one.quantisation) if one.complete else one.problem or _INCOMPLETE,
                size_of(one.nbytes),
                printable(str(one.path)),
            )
            for one in found
        ),
    )


@models.command()
@click.argument("name")
@json_option
@click.pass_context
def pull(ctx: click.Context, name: str, as_json: bool) -> None:
    """
    Get a model from the Hugging Face hub.

    NAME is a repository (org/name: its safetensors, or else its usual GGUF file), with a
    quantisation (org/name:Q4_K_M) or a file (org/name:file.gguf) of it, or a short name
    (llama3.2:1b).  A pull that was cut goes on where it ended; each file is checked against the
    hub's checksum.  HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HTTPS_PROXY are honoured.
    """
    from propolis_workers.models.names import expect  # noqa: PLC0415  (not for --help)
    from propolis_workers.models.names import short_names  # noqa: PLC0415
    from propolis_workers.models.store import Store  # noqa: PLC0415

    config = settings(ctx)
    meant = expect(name)
    try:
        from propolis_workers.models.pull import pull as get  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        msg = f"pulling a model needs {exc.name}: pip install 'propolis[llm]'"
        raise UsageError(msg) from exc
    if name.lower() in short_names():
        click.echo(f"{name} is {meant}", err=True)
    with _bar(quiet=as_json) as watcher:
        done = get(meant, Store.of(config), watcher)
    if as_json:
        row = {**_row(done.model), "fetched_bytes": done.fetched, "revision": done.revision}
        print_json(row)
        return
    how = f"pulled {size_of(done.fetched)}" if done.fetched else "all of it was here"
    click.echo(f"{done.model.name}: {how}, {done.model.path}")


@models.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def rm(ctx: click.Context, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove pulled models, also those of which a pull was cut."""
    from propolis_workers.models.store import Store  # noqa: PLC0415  (not for --help)

    config = settings(ctx)
    store = Store.of(config)
    found = list({one.path: one for name in names for one in _removable(config, name)}.values())
    if not yes:
        if not sys.stdin.isatty():
            msg = f"rm would remove {', '.join(one.name for one in found)}: give --yes where "
            msg += "nobody can be asked"
            raise UsageError(msg)
        for one in found:
            click.echo(f"{one.name}: {size_of(one.nbytes)}, {one.path}", err=True)
        if not click.confirm("remove?", err=True):
            return
    rows = []
    try:
        for one in found:
            try:
                freed = store.remove(one)
            except OSError as exc:
                msg = f"{exc.filename or one.path} cannot be removed: {exc.strerror}"
                raise ModelError(msg) from exc
            rows.append({"name": one.name, "path": str(one.path), "freed_bytes": freed})
            if not as_json:
                click.echo(f"removed {one.name}: {size_of(freed)} freed")
    finally:  # what is gone is told, whatever stopped it
        if as_json:
            print_json(rows)


@models.command()
@click.argument("model", metavar="[NAME|FILE|FOLDER]", required=False, callback=filled)
@json_option
@click.pass_context
def show(ctx: click.Context, model: str | None, as_json: bool) -> None:
    """
    Say what a model is, and what it needs.

    That is its memory on each device of this machine.  Without an argument: the model that
    `propolis llm` runs.  The weights are not read.
    """
    from propolis.runtime import Runtime  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.default_model import find_model  # noqa: PLC0415
    from propolis_workers.models.facts import as_dict  # noqa: PLC0415
    from propolis_workers.models.facts import facts_of  # noqa: PLC0415

    config = settings(ctx, model=model)
    facts = facts_of(find_model(config), Runtime.start(config))
    if as_json:
        print_json(as_dict(facts))
        return
    for label, text in _lines(facts):
        click.echo(f"{label:<14}{printable(text)}")


def _here(config: Config) -> list[Local]:
    """What was pulled, and what distributions carry."""
    from propolis_workers.llm.default_model import packaged  # noqa: PLC0415  (not for --help)
    from propolis_workers.models.names import quantisation  # noqa: PLC0415
    from propolis_workers.models.store import Local  # noqa: PLC0415
    from propolis_workers.models.store import Store  # noqa: PLC0415

    carried = [
        Local(name, path, (path,), quantisation(path.name) or "") for name, path in packaged()
    ]
    return [*carried, *Store.of(config).models()]


def _row(model: Local) -> dict[str, Any]:
    return {
        "name": model.name,
        "short_names": model.short_names,
        "path": str(model.path),
        "quantisation": model.quantisation,
        "bytes": model.nbytes,
        "complete": model.complete,
        **({"problem": model.problem} if model.problem else {}),
    }


def _removable(config: Config, text: str) -> list[Local]:
    """The models that a name means: those of a repository, or one of them."""
    from propolis_workers.llm.default_model import packaged  # noqa: PLC0415  (not for --help)
    from propolis_workers.models.names import parse  # noqa: PLC0415
    from propolis_workers.models.store import Store  # noqa: PLC0415

    if text in dict(packaged()):
        msg = f"{text} is a distribution, not a pulled model: `pip uninstall {text}` removes it"
        raise UsageError(msg)
    here = [one for one in Store.of(config).models() if not one.problem]
    name = parse(text)
    found = [one for one in here if name is not None and one.name == str(name)]
    mine = [one for one in here if name and one.name.partition(":")[0] == name.repository]
    if not found and name is not None and name.which is None and len(mine) == 1:
        found = mine
    if found:
        return found
    if mine:
        msg = f"{text} is not here by that name; there are: {', '.join(one.name for one in mine)}"
        raise ModelError(msg)
    known = "`propolis models list` shows what is here"
    near = did_you_mean(text, [one.name for one in here], otherwise=known)
    msg = f"{text or repr(text)} was not pulled: {near}"
    raise ModelError(msg)


class _Lines:
    """Who is told of a pull where nobody looks: lines, and no bar."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def say(self, line: str) -> None:
        """Something happened."""
        if not self._quiet:
            click.echo(line, err=True)

    def progress(self, done: int, total: int) -> None:
        """So many bytes are here."""


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Any]:
    """Who is told of a pull: a bar on a terminal, gone at the end, else lines."""
    if not watched(quiet=quiet):
        yield _Lines(quiet=quiet)
        return
    from rich.console import Console  # noqa: PLC0415  (rich only on a terminal)
    from rich.progress import BarColumn  # noqa: PLC0415
    from rich.progress import DownloadColumn  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415
    from rich.progress import TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import TransferSpeedColumn  # noqa: PLC0415

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("pulling", total=None)

        class Drawn:
            """A terminal."""

            def say(self, line: str) -> None:
                """Something happened."""
                bar.console.print(line, markup=False, highlight=False)

            def progress(self, done: int, total: int) -> None:
                """So many bytes are here."""
                bar.update(task, completed=done, total=total)

        yield Drawn()


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    """What people read: a label and a text each."""
    config = facts.config
    yield "path", str(facts.path)
    yield "format", f"{facts.container}, {facts.tensors} tensors, {size_of(facts.nbytes)}"
    shape = ""
    if config is not None:
        shape = f": {config.layers} layers of width {config.width}, {config.heads} heads"
        shape += f", {config.kv_heads} of keys and values"
    yield "architecture", f"{facts.architecture}{shape}"
    yield "parameters", _count(facts.parameters)
    parts = [f"{kind} {part:.1%}" for kind, part in facts.quantisation.items()]
    yield "quantisation", ", ".join(parts)
    if config is not None:
        yield "context", f"{config.context_length} tokens"
    vocab = f", {facts.vocab} tokens" if facts.vocab is not None else ""
    yield "tokenizer", f"{facts.tokenizer or 'none'}{vocab}"
    template = facts.template
    first = "none" if template is None else json.dumps(template.strip().partition("\n")[0])
    yield "template", first if len(first) <= _FIRST_LINE else f"{first[:_FIRST_LINE]}..."
    for need in facts.needs:
        if need.problem is not None:
            yield "memory", f"{need.device}: {need.problem}"
            continue
        yield "computed in", f"{need.device}: {need.dtype}, keys in {need.kv_dtype}"
        parts = [f"{size_of(need.weights)} of weights"]
        parts += [f"{size_of(n)} with {tokens} tokens" for tokens, n in need.contexts.items()]
        free = "" if need.free is None else f"; {size_of(need.free)} are free"
        yield "memory", f"{need.device}: {', '.join(parts)}{free}"
    for problem in facts.problems:
        yield "does not run", problem


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.2f} million"


__all__ = ["models"]
