"""Ctrl-C on the terminal of a run."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import until


COMMAND = "from propolis_command import main; main()"


def children(parent):
    """The processes that it has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def rest(terminal):
    """What is still to be read there, once nobody else has it open."""
    said = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 4096):
            said += more
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("options", "times"), [((), 1), (("--quick",), 2)])
def test_ctrl_c(options, times):
    """It ends the run at once, with its children, however often it is typed."""
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-c", COMMAND, "conformance", "cpu_ref", *options]
    process = subprocess.Popen(
        arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # Whoever runs the tests may be ignoring it, as a shell's & does.
        preexec_fn=lambda: (  # noqa: PLW1509  (no threads)
            signal.signal(signal.SIGINT, signal.SIG_DFL),
            os.login_tty(0),
        ),
    )
    try:
        os.close(theirs)
        said = b""
        while b"judged" not in said:
            said += os.read(ours, 4096)
        judging = children(process.pid)
        assert judging
        for _ in range(times):
            os.write(ours, b"\x03")
            time.sleep(0.02)
        until(lambda: process.poll() is not None, 5)
        assert process.returncode == 130, said
        assert not [pid for pid in judging if Path(f"/proc/{pid}/cmdline").exists()]
        said += rest(ours)
        assert said.count(b"interrupted") == 1
        assert said.count(b" failed, the others not") == 1
        assert b"Traceback" not in said
    finally:
        process.kill()
        process.wait()
        os.close(ours)
