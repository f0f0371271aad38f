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

import structlog


if TYPE_CHECKING:
    from propolis.config import Config


def get_logger() -> Any:
    """
    The logger of Propolis, a structlog logger.

    In a process that never set structlog up (a script that imports Propolis) it logs
    warnings to standard error; structlog by itself would write to standard output.
    """
    if structlog.is_configured():
        return structlog.get_logger("propolis")
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr), **_pipeline("warning", as_json=not sys.stderr.isatty())
    )


def configure(config: Config) -> None:
    """Set up log lines for this process, as ``config`` says."""
    as_json = config.log_format == "json" or (
        config.log_format == "auto" and not sys.stderr.isatty()
    )
    structlog.configure(
        **_pipeline(config.log_level, as_json=as_json),
        logger_factory=_StderrLoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _pipeline(level: str, *, as_json: bool) -> dict[str, Any]:
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
        "wrapper_class": structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()],
        ),
    }


class _StderrLoggerFactory:
    """Looks standard error up per logger: tests and progress bars replace it."""

    def __call__(self, *args: Any) -> structlog.PrintLogger:
        del args
        return structlog.PrintLogger(sys.stderr)
