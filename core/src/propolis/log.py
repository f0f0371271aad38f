"""
Log lines: for people on a terminal, JSON for machines, always to standard error.

Event names are stable and dotted (``plugin.rejected``, ``op.fallback``); they are
listed in docs/logging.md.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from propolis.config import Config

# What `configure` was told, while structlog is not imported: that takes a tenth of a second, and
# most processes log nothing.
_awaiting: tuple[str, bool] | None = None


def enabled(level: str) -> bool:
    """Whether a line of that level would be written: nothing is imported to find that out."""
    if _awaiting is not None:
        return _number(level) >= _number(_awaiting[0])
    return "structlog" in sys.modules or _number(level) >= logging.WARNING


def get_logger() -> Any:
    """
    The logger of Propolis, a structlog logger.

    In a process that never set structlog up (a script that imports Propolis) it logs
    warnings to standard error; structlog by itself would write to standard output.
    """
    import structlog  # noqa: PLC0415  (when somebody logs)

    if _awaiting is not None:
        _set_up(*_awaiting)
    if structlog.is_configured():
        return structlog.get_logger("propolis")
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr), **_pipeline("warning", as_json=not sys.stderr.isatty())
    )


def configure(config: Config) -> None:
    """Set up log lines for this process, as ``config`` says."""
    global _awaiting  # noqa: PLW0603  (one for a process, as structlog's own configuration is)
    as_json = config.log_format == "json" or (
        config.log_format == "auto" and not sys.stderr.isatty()
    )
    if "structlog" in sys.modules:
        _set_up(config.log_level, as_json)
    else:
        _awaiting = config.log_level, as_json


def _set_up(level: str, as_json: bool) -> None:
    import structlog  # noqa: PLC0415  (when somebody logs)

    global _awaiting  # noqa: PLW0603  (as in `configure`)
    _awaiting = None

    def to_stderr(*_: Any) -> Any:  # looked up anew: tests and progress bars replace it
        return structlog.PrintLogger(sys.stderr)

    structlog.configure(
        **_pipeline(level, as_json=as_json),
        logger_factory=to_stderr,
        cache_logger_on_first_use=False,
    )


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _pipeline(level: str, *, as_json: bool) -> dict[str, Any]:
    import structlog  # noqa: PLC0415  (when somebody logs)

    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=0,
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
    ]
    if as_json:
        processors.append(structlog.processors.dict_tracebacks)
    return {
        "processors": [*processors, renderer],
        "wrapper_class": structlog.make_filtering_bound_logger(_number(level)),
    }
