"""Trying a library in a child: what is learnt from its end, and when it is asked again."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from propolis_rocm_hip import progress
from propolis_rocm_hip import trial
from propolis_rocm_hip.trial import Outcome
from propolis_rocm_hip.trial import Trial
from propolis_rocm_hip.trial import outcome


CHILD = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write("asked ")
{0}
"""
ENDS = {
    "well": ("pass", Outcome(ok=True), True),
    "no": ("print('first'); sys.exit('no such group')", Outcome(False, "no such group"), False),
    "abort": (
        "os.write(2, b'some error: no code\\n  list\\n'); os.abort()",
        Outcome(False, "it ended the process (SIGABRT): some error: no code"),
        True,
    ),
    "killed": (
        "os.kill(os.getpid(), 9)",
        Outcome(False, "it ended the process (SIGKILL)"),
        False,
    ),
}


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """``tried(code)`` gives a trial of that code, and what says how often it was asked."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    library = tmp_path / "library.so"
    library.touch()
    log = tmp_path / "log"
    log.touch()

    def make(code):
        (tmp_path / "tried_here.py").write_text(CHILD.format(code))
        made = Trial("tried_here", (str(log),), (library,), ("VENDOR_",), "gfx1100")
        return made, lambda: log.read_text().count("asked")

    return make


@pytest.mark.parametrize("end", ENDS)
def test_ends(tried, tmp_path, end) -> None:
    """Success and an abort hold; a plain no, or somebody else's kill, does not."""
    code, expected, lasts = ENDS[end]
    what, asked = tried(code)
    assert [expected, expected] == [outcome(what, tmp_path / "cache", 60) for _ in range(2)]
    assert asked() == (1 if lasts else 2)


def test_a_child_that_hangs(tried, tmp_path, monkeypatch) -> None:
    """It is said while it runs, ended in time, and not waited for again until it is forgotten."""
    monkeypatch.setattr(progress, "FIRST", 0.1)
    what, asked = tried("time.sleep(600)")
    again = "it gave no answer in 1.5 s; `propolis plugins --reprobe` asks again"
    with capture_logs() as logs:
        assert [Outcome(False, again)] * 2 == [outcome(what, tmp_path, 1.5) for _ in range(2)]
    assert ["rocm.trying", "rocm.tried"] == [line["event"] for line in logs]
    assert ("gfx1100", 1.5) == (logs[0]["library"], logs[0]["at_most"])
    assert asked() == 1
    trial.forget(tmp_path, ["gfx90a", "else"])
    outcome(what, tmp_path, 0.5)
    assert asked() == 1
    trial.forget(tmp_path, ["gfx90a", "gfx11"])
    outcome(what, tmp_path, 0.5)
    assert asked() == 2


def test_what_it_depends_on(tried, tmp_path, monkeypatch) -> None:
    """Another library, architecture or variable is another question; others' variables are not."""
    what, _ = tried("pass")
    known = what.key
    monkeypatch.setenv("OTHER", "1")
    assert known == what.key == replace(what, arguments=("elsewhere",)).key
    changed = {replace(what, about="gfx1101").key, replace(what, depends=(tmp_path,)).key}
    monkeypatch.setenv("VENDOR_PATH", "/elsewhere")
    changed.add(what.key)
    monkeypatch.delenv("VENDOR_PATH")
    what.depends[0].write_text("another")
    changed.add(what.key)
    assert len(changed - {known}) == 4


def test_a_cache_that_is_damaged(tried, tmp_path) -> None:
    """It is an empty one."""
    what, asked = tried("pass")
    for content in ("[1]", "{", '{"key": 5}'):
        (tmp_path / trial.FILE).write_text(content)
        assert outcome(what, tmp_path, 60).ok
    assert asked() == 3


def test_a_folder_that_cannot_be_written(tried, tmp_path) -> None:
    """The answer is given all the same."""
    what, asked = tried("pass")
    (tmp_path / "file").touch()
    assert [True, True] == [outcome(what, tmp_path / "file", 60).ok for _ in range(2)]
    assert asked() == 2
