"""``propolis tune miopen``: let MIOpen measure what is fastest for the shapes that were used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from propolis.cli import settings
from propolis.errors import DeviceNotFoundError
from propolis.errors import OutOfMemoryError


if TYPE_CHECKING:
    from propolis_rocm_miopen._kept import Kept


@click.command()
@click.option("--device", default="rocm:0", show_default=True, help="The GPU to measure on.")
@click.option("--again", is_flag=True, help="Also shapes that were measured before.")
@click.pass_context
def miopen(ctx: click.Context, device: str, again: bool) -> None:
    """
    Measure MIOpen's solutions for the convolutions that models have run here.

    A model that runs leaves the shapes of its convolutions in the cache folder.  This
    measures each, seconds to minutes, and from then on workers take the fastest.  What is
    interrupted goes on where it was.
    """
    from propolis import Runtime  # noqa: PLC0415  (not for --help)
    from propolis_rocm_hip.device import RocmDevice  # noqa: PLC0415
    from propolis_rocm_miopen import probe  # noqa: PLC0415
    from propolis_rocm_miopen.handle import Handle  # noqa: PLC0415

    found = Runtime.start(settings(ctx)).device(device)
    if not isinstance(found, RocmDevice):
        msg = f"{device} is no AMD GPU: name one of `propolis devices`, as --device rocm:0"
        raise DeviceNotFoundError(msg)
    verdict = probe.on(found)
    if verdict.refusal:
        raise DeviceNotFoundError(verdict.refusal)
    handle = found.keep(Handle)
    known = list(handle.shelf.all().values())
    rows = [row for row in known if again or not row.tuned]
    if not rows:
        why = "run a model with convolutions on this device first"
        if known:
            why = f"all {len(known)} shapes that were met have been; --again measures them anew"
        click.echo(f"nothing to measure: {why}")
        return
    failed = 0
    for number, row in enumerate(rows, 1):
        click.echo(f"{number}/{len(rows)} {row.problem}: ", nl=False)
        try:
            chosen = handle.tune(row.problem, row.wanted)
        except OutOfMemoryError as exc:
            chosen = str(exc)
        failed += isinstance(chosen, str)
        click.echo(chosen if isinstance(chosen, str) else _said(row, chosen.kept))
    if failed:
        click.echo(f"{failed} of {len(rows)} were not measured")
        ctx.exit(1)


def _said(before: Kept, after: Kept) -> str:
    """What came of it."""
    from propolis_rocm_miopen import _ffi  # noqa: PLC0415

    name = _ffi.ALGORITHMS.get(after.algorithm, str(after.algorithm))
    same = "as before" if after.solution == before.solution else f"was {before.solution}"
    return f"solution {after.solution} ({name}), {same}"
