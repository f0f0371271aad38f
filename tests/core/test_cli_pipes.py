"""The command line where its output goes elsewhere than to a terminal that can show it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


RUN = [sys.executable, "-c", "from propolis.cli import main; main()"]


@pytest.mark.parametrize("arguments", [["ops"], ["ops", "--json"], ["doctor"], ["--help"]])
def test_a_reader_that_goes_away(arguments, monkeypatch):
    """``propolis ops | head -1`` is no error and says nothing."""
    monkeypatch.setenv("PROPOLIS_LOG_LEVEL", "error")  # of plugins that this machine cannot use
    with subprocess.Popen(
        [*RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdout.close()
        said = child.stderr.read()
        child.wait(30)
    assert (child.returncode, said) == (0, b"")


def test_a_reader_that_goes_away_in_the_middle(python):
    """As above, when the output is larger than a pipe."""
    source = """
    import click, subprocess, sys
    from propolis.cli import cli, main
    cli.add_command(click.Command("flood", callback=lambda: print("x" * 10_000_000)))
    main(["flood"])
    """
    import textwrap

    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        child.stdout.read(10)
        child.stdout.close()
        said = child.stderr.read()
        child.wait(30)
    assert (child.returncode, said) == (0, b"")


def test_a_terminal_without_unicode(python):
    """Tables are drawn with what the terminal can show."""
    import os

    done = python(
        "from propolis.cli import main; main(['plugins'])",
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PROPOLIS_LOG_LEVEL": "error"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu_ref" in done.stdout


def test_run_as_a_module():
    """`python -m propolis` is the command `propolis`."""
    done = subprocess.run(
        [sys.executable, "-m", "propolis", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("propolis, version ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk():
    """An output that takes no more is an error of whoever chose it, not a bug."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RUN, "ops"], check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        2,
        "error: the output cannot be written: No space left on device\n",
    )


CLOSED = "error: the output cannot be written: Bad file descriptor\n"


def shell(command, streams):
    """Run it with streams that a shell closes."""
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {streams}', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "closed", "code", "said"),
    [
        ("ops", ">&-", 2, CLOSED),
        ("ops --json", ">&-", 2, CLOSED),
        ("--version", ">&- <&-", 2, CLOSED),
        ("lock -o {folder}/lock.json", ">&- <&-", 0, ""),
        ("lock", "2>&- <&-", 0, ""),
        ("--log-format json ops", "2>&-", 0, ""),
        ("explain nothing", ">&- 2>&- <&-", 2, ""),
    ],
)
def test_closed_streams(arguments, closed, code, said, tmp_path, monkeypatch):
    """An answer that goes nowhere is an error; what nobody reads, or asks for, is not missed."""
    monkeypatch.setenv("PROPOLIS_LOG_LEVEL", "error")
    command = [*RUN, *arguments.format(folder=tmp_path).split()]
    done = shell(command, closed)
    assert (done.returncode, done.stderr) == (code, said)
    assert bool(done.stdout) == (">&-" not in closed.split())


SOURCE = """
import click, os, sys
from propolis.cli import cli, main
cli.add_command(click.Command("wrong", callback=lambda: {what}))
main(["wrong"])
"""


def test_a_descriptor_that_is_closed_is_a_bug():
    """Of the command, where standard output is open: it is not called the output's fault."""
    source = SOURCE.format(what="os.close(999)")
    done = shell([sys.executable, "-c", source], "")
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr.startswith("error: OSError: [Errno 9] Bad file descriptor (a bug in")


def test_closed_streams_take_any_text():
    """What goes nowhere is no error for its characters, in a locale that has few too."""
    source = SOURCE.format(what=r"print('caf\u00e9 \udce9', file=sys.stderr)")
    command = ["env", "LC_ALL=C", "PYTHONCOERCECLOCALE=0", "PYTHONUTF8=0"]
    done = shell([*command, sys.executable, "-c", source], "2>&-")
    assert (done.returncode, done.stdout) == (0, "")
