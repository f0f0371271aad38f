"""``propolis models quantize`` and ``convert``: make a model of another."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import click

from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import settings
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis.wording import size_of
from propolis_workers.terminal import ended_by_signals
from propolis_workers.terminal import loading_bar


# Of a part of a model, which is split.
_NUMBER = re.compile(r"-\d{5}(?=-of-\d{5}\.gguf$)")

_overwrite = click.option(
    "--overwrite", is_flag=True, help="Replace OUT where it exists, if it is a GGUF file."
)


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--type", "kind", metavar="TYPE", required=True, help="What to make of it: q4_k_m.")
@_overwrite
@json_option
@click.pass_context
def quantize(
    ctx: click.Context, source: str, target: Path, kind: str, overwrite: bool, as_json: bool
) -> None:
    """
    Make a model smaller.

    IN is a GGUF file in f32, f16 or bf16, or the name of a pulled one; OUT the file to write.
    TYPE is q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, bf16 or f16, each
    llama.cpp's mixture of that name.
    """
    from propolis.runtime import Runtime  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.default_model import located  # noqa: PLC0415
    from propolis_workers.models.quantize import quantize as make  # noqa: PLC0415

    config = settings(ctx)
    path = located(source, config)
    _expect_gguf(path)
    expect_new(target, overwrite=overwrite)
    if target.exists() and _is_of(path, target):
        msg = f"{target} is the model itself, which would be gone: give another file"
        raise UsageError(msg)
    with ended_by_signals(), loading_bar(quiet=as_json) as progress:
        cpu = Runtime.start(config).cpu
        done = make(path, target, kind, cpu, progress, overwrite=overwrite)
    if as_json:
        before, after = done.before, done.after
        row = {"path": str(target), "bytes": after, "from_bytes": before, "formats": done.formats}
        print_json(row)
        return
    shares = sorted(done.formats.items(), key=lambda one: -one[1])
    parts = ", ".join(f"{size_of(nbytes)} of {name}" for name, nbytes in shares)
    click.echo(f"{target}: {size_of(done.before)} became {size_of(done.after)}: {parts}")


@click.command()
@click.argument("source", metavar="FOLDER")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "kind",
    type=click.Choice(["f32", "f16", "bf16"]),
    help="Of the matrices; that of most of them if not given.",
)
@_overwrite
@json_option
@click.pass_context
def convert(
    ctx: click.Context,
    source: str,
    target: Path,
    kind: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """
    Make a GGUF file of a folder.

    FOLDER has safetensors, or is the name of a pulled model that does; OUT is the file to write.
    A model whose GGUF file would not say all that the folder does is refused before it is written.
    """
    from propolis.runtime import Runtime  # noqa: PLC0415  (not for --help)
    from propolis_workers.llm.default_model import located  # noqa: PLC0415
    from propolis_workers.models.convert import convert as make  # noqa: PLC0415

    config = settings(ctx)
    path = located(source, config)
    if _is_gguf(path):
        msg = f"{path} is a GGUF file already: `propolis models quantize` makes it smaller"
        raise ModelError(msg)
    expect_new(target, overwrite=overwrite)
    with ended_by_signals(), loading_bar(quiet=as_json) as progress:
        cpu = Runtime.start(config).cpu
        size = make(path, target, kind, cpu, progress, overwrite=overwrite)
    if as_json:
        print_json({"path": str(target), "bytes": size})
        return
    click.echo(f"{target}: {size_of(size)}; `propolis models quantize` makes it smaller")


def _expect_gguf(path: Path) -> None:
    """Refuse what has to be converted first, in words of commands."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and path.suffix != ".safetensors":
        return  # whoever opens it says what else it is
    if _is_gguf(path) or not any(folder.glob("*.safetensors")):
        return
    msg = f"{path} has safetensors; supported: a GGUF file; convert it first: "
    msg += f"`{shlex.join(['propolis', 'models', 'convert', str(folder), 'FILE.gguf'])}`"
    raise ModelError(msg)


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") if path.is_file() else nullcontext() as file:
            return file is not None and file.read(4) == b"GGUF"
    except OSError:
        return False  # whoever opens it says why that cannot be


def expect_new(target: Path, *, overwrite: bool) -> None:
    """
    Check that a file may be written.

    Raises:
        ModelError: it exists and nobody said to replace it, or is no model in one file, which
            would be gone: a part of a folder that is converted, a device.  Or its folder does not.
    """
    if str(target) == "-":
        msg = "a model cannot be written to the standard output, parts of it are read again: give "
        msg += "a file, or ./- for one of that name"
        raise ModelError(msg)
    try:
        folder, inside, there = target.is_dir(), target.parent.is_dir(), os.path.lexists(target)
    except OSError as exc:
        msg = f"{str(target)[:200]} cannot be written ({exc.strerror}): give another name"
        raise ModelError(msg) from exc
    if folder or not inside:
        what = "is a folder" if folder else f"has no folder {target.parent}"
        msg = f"{target} {what}: give a file to write, in a folder that exists"
        raise ModelError(msg)
    if there and not overwrite:
        msg = f"{target} exists: give another name, or --overwrite"
        raise ModelError(msg)
    if there and not (target.is_file() and (_is_gguf(target) or not target.stat().st_size)):
        msg = f"{target} is no GGUF file, and --overwrite replaces no others: give another name"
        raise ModelError(msg)


def _is_of(model: Path, target: Path) -> bool:
    """Whether a file is the model, or another part of one that is split."""
    one, other = model.resolve(), target.resolve()
    beside = one.parent == other.parent and _NUMBER.sub("", one.name) == _NUMBER.sub("", other.name)
    return beside or one.samefile(other)


__all__ = ["convert", "expect_new", "quantize"]
