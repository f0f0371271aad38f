"""``propolis tune sd``: who is fastest at the calls of an image model."""

from __future__ import annotations

from typing import Any

import click

from propolis.cli import settings
from propolis.files import expanded
from propolis_workers.sd.cli import require_packages
from propolis_workers.terminal import ended_by_signals
from propolis_workers.terminal import filled
from propolis_workers.terminal import loading_bar


@click.command("sd")
@click.option(
    "-m", "--model", callback=filled, metavar="PATH", help="A folder in the layout of diffusers."
)
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
@click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores.")
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), help="Of weights; f32.")
@click.option("-W", "--width", type=int, metavar="N", help="In pixels; the model's own.")
@click.option("-H", "--height", type=int, metavar="N", help="In pixels; the model's own.")
@click.option("-b", "--batch", type=int, metavar="N", default=1, help="Images at a time; 1.")
@click.pass_context
def tune(ctx: click.Context, /, **options: Any) -> None:
    """
    Measure the calls of one step and of decoding, and take who is fastest from then on.

    Where several implementations can do a call, each does it some hundred times.  What is found
    holds for images of this size and dtype, until a plugin, a driver or the hardware changes.
    """
    require_packages()
    from propolis import Runtime  # noqa: PLC0415  (not for --help)
    from propolis.dtypes import parse_dtype  # noqa: PLC0415
    from propolis_workers.sd.models import packaged_model  # noqa: PLC0415
    from propolis_workers.sd.pipeline import StableDiffusion  # noqa: PLC0415
    from propolis_workers.sd.recipe import Recipe  # noqa: PLC0415
    from propolis_workers.tuning import measuring  # noqa: PLC0415

    config = settings(ctx, **{name: options.pop(name) for name in ("device", "threads")})
    wanted = {"prompt": "a beehive in a meadow", "steps": 1, "seed": 0, **options}
    recipe = Recipe(model=config.sd_model).changed(wanted).sealed()
    path = expanded(recipe.model) if recipe.model else packaged_model()
    params, dtype = recipe.params(), parse_dtype(recipe.dtype)
    rehearsal = StableDiffusion.rehearsed(path, dtype)
    rehearsal.model.planned(params)  # what is wrong is found before anything is loaded
    runtime = Runtime.start(config)
    with loading_bar(quiet=False) as progress:
        model = StableDiffusion.load(
            path, runtime=runtime, dtype=dtype, progress=progress, rehearsal=rehearsal
        )
    with ended_by_signals(), measuring(runtime, model.device):
        model.generate(params)


__all__ = ["tune"]
