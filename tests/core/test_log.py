from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import structlog

from propolis.config import Config
from propolis.log import configure
from propolis.log import get_logger


def lines(capsys):
    """What was printed to standard error; nothing may go to standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_json_for_machines(capsys):
    """One object a line: event, level, time in UTC, fields."""
    configure(Config(log_format="json"))
    get_logger().warning("op.fallback", op="add", reason="why")
    (line,) = lines(capsys)
    found = json.loads(line)
    assert found.pop("timestamp").endswith("Z")
    assert found == {"event": "op.fallback", "level": "warning", "op": "add", "reason": "why"}


def test_exceptions_in_json(capsys):
    """A traceback is data, not text."""
    configure(Config(log_format="json"))
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        get_logger().exception("failed")
    (line,) = lines(capsys)
    assert json.loads(line)["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_console_for_people(capsys):
    """No colours into a file."""
    configure(Config(log_format="console"))
    get_logger().warning("op.fallback", op="add")
    (line,) = lines(capsys)
    assert "op.fallback" in line
    assert "op=add" in line
    assert "\x1b" not in line


@pytest.mark.parametrize(("terminal", "is_json"), [(True, False), (False, True)])
def test_auto_looks_at_the_terminal(monkeypatch, terminal, is_json):
    """Console on a terminal, JSON elsewhere."""

    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    stream = Stream()
    monkeypatch.setattr("sys.stderr", stream)
    configure(Config())
    get_logger().warning("event", a=1)
    assert stream.getvalue().startswith("{") == is_json
    assert ("\x1b" in stream.getvalue()) == terminal


@pytest.mark.parametrize(
    ("level", "printed"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels(capsys, level, printed):
    """The setting is the least severe level that is printed."""
    configure(Config(log_level=level, log_format="json"))
    for name in ("debug", "info", "warning", "error"):
        getattr(get_logger(), name)("event")
    assert [json.loads(line)["level"] for line in lines(capsys)] == printed


def test_standard_error_is_looked_up_late(capsys, monkeypatch):
    """Progress bars and tests replace it after the set-up."""
    configure(Config(log_format="json"))
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    get_logger().warning("event")
    assert "event" in stream.getvalue()


def test_a_script_that_sets_nothing_up(capsys):
    """Warnings go to standard error, where structlog by itself would use standard output."""
    assert not structlog.is_configured()
    get_logger().info("too quiet")
    get_logger().warning("op.fallback", op="add")
    (line,) = lines(capsys)
    assert json.loads(line)["event"] == "op.fallback"
    assert not structlog.is_configured()


def test_an_applications_own_set_up_is_respected():
    """Who configured structlog gets our lines in their way."""
    with structlog.testing.capture_logs() as logs:
        get_logger().info("event")
    assert logs == [{"event": "event", "log_level": "info"}]


def test_nothing_is_imported_for_lines_that_are_not_written():
    """Structlog is imported when the first line is severe enough, and is set up as was asked."""
    code = """
import sys
from propolis import Config
from propolis.events import Event
from propolis.log import configure
configure(Config(log_level="warning", log_format="json"))
Event("a.b", "info", "when", ("n",)).emit(n=1)
assert "structlog" not in sys.modules
Event("c.d", "warning", "when", ("n",)).emit(n=2)
assert "structlog" in sys.modules
Event("a.b", "info", "when", ("n",)).emit(n=3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["n"] == 2
