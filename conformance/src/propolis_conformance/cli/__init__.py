"""The commands that this distribution adds to ``propolis``, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import click


if TYPE_CHECKING:
    from collections.abc import Callable


def timeout_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--timeout``: seconds after which ``what`` hangs."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help=f"A {what} that takes longer hangs.",
    )


__all__ = ["timeout_option"]
