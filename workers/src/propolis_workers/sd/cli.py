"""
``propolis sd``: draw images on the command line.

What is drawn goes to files; standard output gets their names, or with ``--json`` one
document, and standard error all else.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import contextmanager
from contextlib import nullcontext
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import json_option
from propolis.cli import print_json
from propolis.cli import settings
from propolis.dispatch import DispatchTable
from propolis.errors import UsageError
from propolis.files import expanded
from propolis_workers.terminal import ended_by_signals
from propolis_workers.terminal import filled
from propolis_workers.terminal import loading_bar
from propolis_workers.terminal import standard_input
from propolis_workers.terminal import steps_bar
from propolis_workers.terminal import sum_up
from propolis_workers.terminal import utf8


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path

    from propolis.config import Config
    from propolis_workers.sd.images import Pixels
    from propolis_workers.sd.lora import LoRA
    from propolis_workers.sd.params import GenerateParams
    from propolis_workers.sd.pipeline import StableDiffusion
    from propolis_workers.sd.recipe import Recipe
    from propolis_workers.sd.result import Images


@click.group()
def sd() -> None:
    """Draw images with Stable Diffusion."""


@sd.command()
@click.argument("prompt", required=False, callback=utf8)
@click.option("-o", "--output", metavar="PNG", help="The file; out.png, or the next free name.")
@click.option("--from", "origin", metavar="PNG", help="Draw again what is in this file.")
@click.option(
    "-m", "--model", callback=filled, metavar="PATH", help="A folder in the layout of diffusers."
)
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
@click.option(
    "--fallback",
    type=click.Choice(["allow", "warn", "error"]),
    help="What to do about ops that fall to the CPU.",
)
@click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores.")
@click.option("--metrics", is_flag=True, default=None, help="End with what each op cost.")
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), help="Of weights; f32.")
@click.option(
    "-n", "--negative", metavar="TEXT", callback=utf8, help="What should not be in the image."
)
@click.option("-W", "--width", type=int, metavar="N", help="In pixels; the image's, or model's.")
@click.option("-H", "--height", type=int, metavar="N", help="In pixels; the image's, or model's.")
@click.option("-s", "--steps", type=int, metavar="N", help="Steps; 25.")
@click.option("-g", "--guidance", type=float, metavar="X", help="Weight of the prompt; 7.5.")
@click.option(
    "--seed",
    type=click.IntRange(-1, 2**64 - 1),
    metavar="N",
    help="Makes the image repeatable; -1 for another each time.",
)
@click.option("-b", "--batch", type=int, metavar="N", help="Images, with seeds one apart.")
@click.option("--scheduler", metavar="NAME", help="ddim, euler, ...; the model's own.")
@click.option("--sigmas", metavar="KIND", help="normal, karras or exponential.")
@click.option("--spacing", metavar="KIND", help="leading, trailing or linspace.")
@click.option("--eta", type=float, metavar="X", help="Share of noise that DDIM adds; 0.")
@click.option("-i", "--image", metavar="FILE", help="An image to start from.")
@click.option("--mask", metavar="FILE", help="White where the image is drawn anew.")
@click.option("--strength", type=float, metavar="X", help="Share of steps done on the image.")
@click.option(
    "--lora",
    "loras",
    metavar="FILE[=STRENGTH]",
    multiple=True,
    help="Changes of the weights; may be given several times.",
)
@click.option(
    "--tiled",
    type=click.Choice(["auto", "never", "always"]),
    default="auto",
    show_default=True,
    help="Decode in tiles, which takes less memory.",
)
@click.option(
    "--preview",
    type=click.IntRange(1),
    metavar="N",
    help="Every N steps draw what is seen so far, beside the file.",
)
@json_option
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    as_json: bool,
    origin: str | None,
    output: str | None,
    preview: int | None,
    tiled: Any,
    **options: Any,
) -> None:
    """
    Draw what PROMPT says ("-" reads it from standard input), and write a PNG file.

    The file holds what it was drawn from: --from draws the same again, with whatever other
    options change.
    """
    require_packages()
    from propolis_workers.sd.recipe import Recipe  # noqa: PLC0415  (not for --help)
    from propolis_workers.sd.recipe import output_path  # noqa: PLC0415

    if options["prompt"] == "-":
        options["prompt"] = standard_input()
    names = ("device", "fallback", "threads", "metrics")
    config = settings(ctx, **{name: options.pop(name) for name in names})
    # What is wrong is found before a model is loaded, and long before anything is drawn.
    path = output_path(output)
    stored = Recipe(model=config.sd_model) if origin is None else Recipe.read(origin)
    recipe = stored.changed(options).sealed()
    recipe.expect_apart(path)
    params, loras = recipe.params(), recipe.open_loras()
    model = _load(ctx, config, recipe, params, loras, quiet=as_json)
    with _previews(path, preview) as write_preview, steps_bar(quiet=as_json) as bar:

        def after_step(done: int, steps: int, draw: Callable[[], Pixels]) -> None:
            if bar is not None:
                bar(done, steps)
            write_preview(done, draw)

        images = model.generate(params, progress=after_step, tiled=tiled)
    # A name that was free before may be taken now.
    written = recipe.save(images, None if output is None else path)
    if as_json:
        print_json(_report(model, images, recipe, written))
        return
    for one in written:
        click.echo(one)
    _print_end(images, len(written), (images.params.seed or 0) + (recipe.index or 0))


@sd.command()
@click.argument("png")
@json_option
def info(png: str, as_json: bool) -> None:
    """Say what a PNG file of Propolis was drawn from."""
    require_packages()
    from propolis_workers.sd.images import read_metadata  # noqa: PLC0415  (not for --help)

    metadata = read_metadata(png)
    if as_json:
        print_json(metadata)
        return
    for name, value in metadata.items():
        if value not in (None, [], ""):
            # A stranger's text must not steer the terminal.
            plain = not isinstance(value, str) or value.isprintable()
            click.echo(f"{name}: {value if plain else repr(value)}")
    seed, index = metadata.get("seed"), metadata.get("index")
    if type(seed) is int and type(index) is int and index > 0:
        click.echo(f"this image's own seed: {seed + index}")


def require_packages() -> None:
    """
    Check that the extra ``sd`` is installed.

    Raises:
        UsageError: it is not; names the packages.
    """
    missing = [name for name in ("PIL", "tokenizers") if importlib.util.find_spec(name) is None]
    if missing:
        msg = f"drawing needs packages that are not installed ({', '.join(missing)}): "
        msg += "pip install 'propolis[sd]'"
        raise UsageError(msg)


def _load(
    ctx: click.Context,
    config: Config,
    recipe: Recipe,
    params: GenerateParams,
    loras: list[tuple[LoRA, float]],
    *,
    quiet: bool,
) -> StableDiffusion:
    """The model with its LoRAs, with a progress bar while its weights are read."""
    from propolis.dtypes import parse_dtype  # noqa: PLC0415  (not for --help)
    from propolis.runtime import Runtime  # noqa: PLC0415
    from propolis_workers.sd.models import packaged_model  # noqa: PLC0415
    from propolis_workers.sd.pipeline import StableDiffusion  # noqa: PLC0415

    path = expanded(recipe.model) if recipe.model else packaged_model()
    dtype = parse_dtype(recipe.dtype)
    rehearsal = StableDiffusion.rehearsed(path, dtype)
    for lora, strength in loras:
        rehearsal.apply_lora(lora, strength)
    rehearsal.model.planned(params, sides="--width and --height")
    runtime = Runtime.start(config)
    device = runtime.device(config.device)
    sum_up(ctx, device, quiet=quiet)
    rehearsal.expect_loadable(device, params)
    with loading_bar(quiet=quiet) as progress:
        model = StableDiffusion.load(
            path, runtime=runtime, dtype=dtype, progress=progress, rehearsal=rehearsal
        )
    for lora, strength in loras:
        model.apply_lora(lora, strength)
    if not quiet:
        note = f"loaded {model.name} ({recipe.dtype}) in {model.load_seconds:.1f} s"
        click.echo(f"{note} on {model.device.id}", err=True)
    return model


@contextmanager
def _previews(
    path: Path, every: int | None
) -> Iterator[Callable[[int, Callable[[], Pixels]], None]]:
    """Writes a preview beside the file every so many steps; it goes when the run ends."""
    from propolis_workers.sd.images import write_png  # noqa: PLC0415  (not for --help)

    preview, number, written = path.with_suffix(".preview.png"), 1, False
    while os.path.lexists(preview):  # somebody else's
        number += 1
        preview = path.with_suffix(f".preview.{number}.png")

    def write(done: int, draw: Callable[[], Pixels]) -> None:
        nonlocal written
        if every is not None and done % every == 0:
            pixels, written = draw(), True  # a signal may come as soon as it is there
            write_png(preview, pixels)

    with nullcontext() if every is None else ended_by_signals():
        try:
            yield write
        finally:
            if written:
                preview.unlink(missing_ok=True)


def _print_end(images: Images, written: int, seed: int) -> None:
    """What was drawn, from which seed on, and how long it took."""
    params, seconds = images.params, images.seconds
    steps = seconds["steps"]
    count = "1 image" if written == 1 else f"{written} images"
    calls = "1 step" if params.steps == 1 else f"{params.steps} steps"
    click.echo(
        f"{count} of {params.width}x{params.height}, seed {seed}, {params.scheduler}: "
        f"text {seconds['text']:.1f} s, {calls} {steps:.1f} s, "
        f"decoding {seconds['decode']:.1f} s",
        err=True,
    )
    for note in images.notes:
        click.echo(f"note: {note}", err=True)


def _report(
    model: StableDiffusion, images: Images, recipe: Recipe, written: list[Path]
) -> dict[str, Any]:
    return {
        "model": model.name,
        "images": [
            {"file": str(path), **metadata}
            for path, metadata in zip(written, recipe.metadata(images), strict=True)
        ],
        "cut": images.cut,
        "notes": images.notes,
        "load_seconds": model.load_seconds,
        "seconds": images.seconds,
        "placement": DispatchTable.of(model.device).placement.as_dict(),
    }
