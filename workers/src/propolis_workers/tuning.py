"""What ``propolis tune llm`` and ``propolis tune sd`` share: measuring while a model runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from propolis.dispatch import DispatchTable
from propolis.dispatch.tuned import Tuned
from propolis.plugins.tuned_file import TunedFile
from propolis_workers.tuner import Tuner


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Device
    from propolis import Runtime
    from propolis.dispatch import Call
    from propolis.dispatch.tuned import Choice


@contextmanager
def measuring(runtime: Runtime, device: Device) -> Iterator[None]:
    """
    Measure calls on a device, within, and keep what was found; each is told as it is known.

    What an interrupted run had found is kept too.
    """
    file = TunedFile(runtime.config.cache_dir)
    file.keep(runtime.plugins.reports, Tuned())  # where that fails, nothing is measured in vain
    measured = 0

    def tell(call: Call, calls: str, choice: Choice | None) -> None:
        nonlocal measured
        measured += 1
        said = "who goes first is the fastest" if choice is None else str(choice)
        click.echo(f"{call.spec.name} of sizes up to {calls}: {said}", err=True)

    tuner, table = Tuner(device, tell), DispatchTable.of(device)
    table.tuned = Tuned()  # who leads is who leads without what was measured before
    table.rebind()
    try:
        with table.intercept(tuner):
            yield
    finally:
        file.keep(runtime.plugins.reports, tuner.found, tuner.measured)
        for line in tuner.refused:
            click.echo(f"not believed: {line}", err=True)
        better = len(list(tuner.found.rows()))
        click.echo(f"{measured} kinds of calls that several can do; another is faster for {better}")


__all__ = ["measuring"]
