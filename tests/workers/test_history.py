from __future__ import annotations

import json

import pytest

from propolis_workers.llm.history import History


@pytest.fixture
def path(tmp_path):
    """A file in a folder that is not there yet."""
    return tmp_path / "state" / "propolis" / "chat_history"


def test_lines_come_back(path):
    """What was said in one chat is there in the next, whatever characters it has."""
    said = ["the", "ż \u2028 x", 'two\nlines\r\nand a \\ and a "', "\udcff", "/help"]
    one = History(path, 10)
    assert [] == one.lines
    assert all(one.add(line) for line in said)
    assert said == one.lines == History(path, 10).lines
    assert 5 == path.read_bytes().count(b"\n")


def test_it_is_private(path):
    """Nobody else reads what was said."""
    History(path, 10).add("secret")
    assert 0o600 == path.stat().st_mode & 0o777
    assert 0o700 == path.parent.stat().st_mode & 0o777
    path.write_text("".join(f'"{n}"\n' for n in range(20)))
    History(path, 10)
    assert 0o600 == path.stat().st_mode & 0o777
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("line", ["", "  ", " with a space before", "\ttab", "x" * 10_001])
def test_what_is_not_kept(path, line):
    """Nothing, what begins with a space, and what is longer than anybody types."""
    history = History(path, 10)
    assert not history.add(line)
    assert [] == history.lines
    assert not path.exists()


def test_the_same_again(path):
    """A line that is said again is kept once, as in shells."""
    history = History(path, 10)
    assert [True, False, True, True] == [history.add(line) for line in ("a", "a", "b", "a")]
    assert ["a", "b", "a"] == History(path, 10).lines


def test_it_is_bounded(path):
    """A chat begins with the last lines of the file, and makes it no longer than they are."""
    history = History(path, 10)
    for n in range(25):
        history.add(f"line {n}")
    again = History(path, 10)
    assert [f"line {n}" for n in range(15, 25)] == again.lines
    assert 10 == path.read_text().count("\n")
    again.add("more")
    assert "more" == History(path, 10).lines[-1]


def test_chats_at_the_same_time(path):
    """What two chats keep is in the file, of both."""
    one, two = History(path, 10), History(path, 10)
    one.add("a")
    two.add("b")
    one.add("c")
    assert ["a", "b", "c"] == History(path, 10).lines


def test_a_strange_file(path):
    """Rows that this did not write are left out."""
    path.parent.mkdir(parents=True)
    rows = ["plain text", json.dumps("said"), "3", "", "[" * 100_000, r'"\xff"', '"half']
    rows += [r'"\u0000"', r'"\ud800"', '"cut off']
    path.write_bytes("\n".join(rows).encode("latin-1"))
    assert ["said"] == History(path, 10).lines


def test_a_file_that_cannot_be(tmp_path):
    """Where the file cannot be read or written, that is an OSError for who asked."""
    with pytest.raises(OSError, match="directory"):
        History(tmp_path, 10)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"[Dd]irectory|exists"):
        History(tmp_path / "file" / "history", 10).add("a")
