"""``python -m propolis_rocm_kernels.builder``: compile the kernels."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from propolis_rocm_kernels import _code
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels.builder import compile as compiling
from propolis_rocm_kernels.builder import toolchain


@click.command()
@click.option("--arch", "archs", multiple=True, type=click.Choice(list(ARCHS)), help="Only this.")
@click.option("--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)))
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("build"))
def main(archs: tuple[str, ...], jobs: int, scratch: Path) -> None:
    """Compile every module for every architecture; what is up to date is left as it is."""
    started = time.monotonic()
    modules = _code.modules()
    try:
        found = toolchain.find(scratch.absolute())
        click.echo(f"{found.version}: {len(modules)} modules")
        compiling.build(found, modules, archs or list(ARCHS), jobs, click.echo)
    except toolchain.ToolchainError as exc:
        raise click.ClickException(str(exc)) from exc
    size = sum(path.stat().st_size for path in _code.CODE.iterdir())
    click.echo(f"{_code.CODE}: {size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
