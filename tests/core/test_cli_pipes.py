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
