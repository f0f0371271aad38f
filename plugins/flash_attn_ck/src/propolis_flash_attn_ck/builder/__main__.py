"""``python -m propolis_flash_attn_ck.builder``: compile the kernels."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from propolis.errors import PropolisError
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARCHS
from propolis_flash_attn_ck._instances import INSTANCES
from propolis_flash_attn_ck.builder import compile as compiling
from propolis_flash_attn_ck.builder import headers
from propolis_rocm_kernels.builder import toolchain


@click.command()
@click.option("--arch", "archs", multiple=True, type=click.Choice(ARCHS), help="Only this.")
@click.option("--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)))
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("build"))
def main(archs: tuple[str, ...], jobs: int, scratch: Path) -> None:
    """Compile every instance for every architecture; what is up to date is left as it is."""
    started = time.monotonic()
    try:
        found = toolchain.find(scratch.absolute())
        include = headers.fetch(scratch.absolute())
        click.echo(f"{found.version}: {len(INSTANCES)} instances")
        compiling.build(found, include, INSTANCES, archs or ARCHS, jobs, click.echo)
    except PropolisError as exc:
        raise click.ClickException(str(exc)) from exc
    size = sum(path.stat().st_size for path in _code.CODE.iterdir())
    click.echo(f"{_code.CODE}: {size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
