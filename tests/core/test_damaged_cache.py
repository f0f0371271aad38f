"""Files of the cache that are damaged, of another version or unreadable: told, and lived with."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from structlog.testing import capture_logs

from propolis.config import Config
from propolis.errors import ConfigError
from propolis.plugins.quarantine_file import QuarantineFile
from propolis.plugins.tuned_file import TunedFile
from propolis.plugins.vetting import stamp
from propolis.runtime import Runtime


SOURCE = {"plugin": "p", "distribution": "d", "version": "1"}
ENTRY: dict[str, Any] = {"source": SOURCE, "op": "add", "variant": "", "dtypes": ["f32"]}
ENTRY |= {"kind": "cpu", "arch": "x", "reason": "r", "key": "k"}


@pytest.fixture
def cached():
    """Writes a file of the cache, and gives its path."""

    def write(name: str, content: str):
        folder = Config.load().cache_dir
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
        return folder / name

    return write


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtypes": [["f32"]]},
        {"dtypes": [5]},
        {"dtypes": "f32"},
        {"op": {}},
        {"arch": 7},
        {"reason": None},
        {"source": SOURCE | {"version": None}},
        {"source": SOURCE | {"of": "another version"}},
        {"source": 3},
        {"key": None},
    ],
    ids=str,
)
def test_a_row_that_is_no_entry_is_passed_over(cli, cached, wrong):
    """It alone: whoever else is kept out is so, and no command ends as if it were a bug."""
    path = cached("quarantine.json", json.dumps([ENTRY | wrong, ENTRY, 5]))
    done = cli("quarantine", "list")
    assert done.code == 0
    assert done.out.count("add") == 1
    assert cli("doctor").code == 0
    assert cli("quarantine", "clear").out.startswith("let back: add (f32) of p (d 1)")
    assert not any(row == ENTRY for row in json.loads(path.read_text()))


@pytest.mark.parametrize("content", ["", "garbage", "{}", '[{"op": "ad'])
def test_a_damaged_quarantine_is_told(cli, cached, content):
    """By all who would say that nobody is kept out; `clear` ends it."""
    path = cached("quarantine.json", content)
    done = cli("quarantine", "list")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{path} is damaged, so nobody is kept out: `propolis quarantine clear`" in done.err
    assert f"{path} is damaged" in cli("doctor").out
    assert f"{path} is damaged" in cli("devices").err
    assert "starts anew" in cli("quarantine", "clear").out
    assert cli("quarantine", "list").out == "nothing is quarantined\n"


def test_damaged_choices_are_told(cli, cached):
    """Where they would count, which is at each start."""
    path = cached("tuned.json", "garbage")
    with capture_logs() as log:
        Runtime.start(Config.load())
    [told] = [line for line in log if line["event"] == "cache.passed_over"]
    assert told["reason"].startswith(f"{path} is damaged and counts for nothing: ")
    assert f"{path} is damaged" in cli("doctor").out
    assert cli("tune", "show").code == 2
    assert "forgotten" in cli("tune", "forget").out
    assert cli("tune", "show").code == 0


@pytest.mark.parametrize("name", ["quarantine.json", "serialised.json", "tuned.json"])
def test_a_folder_in_a_files_place(cli, name):
    """An error in one line that names it, or nothing that the command has to do with."""
    folder = Config.load().cache_dir / name
    folder.mkdir(parents=True)
    for command in (("quarantine", "clear"), ("quarantine", "list"), ("tune", "forget")):
        done = cli(*command)
        assert done.code in (0, 2)
        assert done.code == 0 or (str(folder) in done.err and done.err.count("\n") == 1)


@pytest.mark.parametrize("kind", [QuarantineFile, TunedFile])
def test_a_file_that_may_not_be_read(kind, monkeypatch, tmp_path):
    """Is not called damaged: its reason is told."""

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refused)
    assert "cannot be read (Permission denied)" in kind(tmp_path).fault()
    monkeypatch.setattr("pathlib.Path.exists", refused)
    with (
        nullcontext()
        if kind is QuarantineFile
        else pytest.raises(ConfigError, match="cannot be removed")
    ):
        kind(tmp_path).clear()


def test_a_stamp_of_no_name():
    """No file has a name with a null character; whoever says so is another version."""
    assert stamp("a\0b").endswith("absent")
