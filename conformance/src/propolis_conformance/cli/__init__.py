"""The commands that this distribution adds to ``propolis``, and what they share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import click


if TYPE_CHECKING:
    from collections.abc import Callable


class Finite(click.FloatRange):
    """A number of some range; click's own takes NaN, which is in none, and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number that is meant."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not supported: give a finite number", param, ctx)
        return found


def timeout_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--timeout``: seconds after which ``what`` hangs."""
    return click.option(
        "--timeout",
        type=Finite(min=0.1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help=f"A {what} that takes longer hangs.",
    )


__all__ = ["Finite", "timeout_option"]
