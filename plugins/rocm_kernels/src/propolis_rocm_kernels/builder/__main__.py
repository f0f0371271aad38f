"""``python -m propolis_rocm_kernels.builder``: compile the kernels."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from propolis_rocm_kernels import _code
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels._families import modules as find_modules
from propolis_rocm_kernels.builder import compile as compiling
from propolis_rocm_kernels.builder import toolchain


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis_rocm_kernels._kernels import Module


@click.command()
@click.option("--arch", "archs", multiple=True, type=click.Choice(list(ARCHS)), help="Only this.")
@click.option("--jobs", type=click.IntRange(1), default=len(os.sched_getaffinity(0)))
@click.option("--scratch", type=click.Path(path_type=Path), default=Path("build"))
@click.option("--if-able", is_flag=True, help="Without a compiler, say what is left out.")
def main(archs: tuple[str, ...], jobs: int, scratch: Path, if_able: bool) -> None:
    """Compile every module for every architecture; what is up to date is left as it is."""
    started = time.monotonic()
    modules = list(find_modules().values())
    wanted = archs or tuple(ARCHS)
    try:
        found = toolchain.find(scratch.absolute())
    except toolchain.ToolchainError as exc:
        if not if_able:
            raise click.ClickException(str(exc)) from exc
        click.echo(exc)
        click.echo(_left_out(modules, wanted))
        return
    click.echo(f"{found.version}: {len(modules)} modules")
    try:
        compiling.build(found, modules, wanted, jobs, click.echo)
    except toolchain.ToolchainError as exc:
        raise click.ClickException(str(exc)) from exc
    size = sum(path.stat().st_size for path in _code.CODE.iterdir())
    click.echo(f"{_code.CODE}: {size / 1e6:.1f} MB, {time.monotonic() - started:.0f} s")


def _left_out(modules: Sequence[Module], wanted: Sequence[str]) -> str:
    """What the wheel will lack; code objects that are older than the sources must not be in it."""
    known = _code.manifest().get("modules", {})
    if any(known.get(m.name, {}).get("source") != _code.source_hash(m) for m in modules):
        shutil.rmtree(_code.CODE, ignore_errors=True)
        _code.manifest.cache_clear()
    lacking = [arch for arch in wanted if arch not in _code.archs()]
    if not lacking:
        return f"nothing is left out: {_code.CODE} is up to date"
    return f"left out: code objects for {', '.join(lacking)}; hipRTC compiles there at first use"


if __name__ == "__main__":
    main()
