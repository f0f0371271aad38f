"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from propolis.files import expanded
from propolis.files import replace_text
from propolis.files import replacing


def mode(path) -> int:
    """Who may read and write it."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    """A umask of our own, so that modes do not hang on who runs the tests."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_file_is_replaced_when_it_is_whole(tmp_path):
    """Until the block ends the old file is there; then the new one, and nothing beside it."""
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path, durable=True) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("new", ["file"])
    assert mode(path) == 0o640


def test_an_error_leaves_the_old_file(tmp_path):
    """Whatever is raised, and no part is left over."""
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("old", ["file"])


@pytest.mark.usefixtures("umask")
def test_text_goes_into_a_folder_that_is_made(tmp_path):
    """For nobody else to read, unless that is said; bytes that are no UTF-8 come back."""
    path = tmp_path / "deep" / "file"
    replace_text(path, "caf\udce9")
    assert (path.read_bytes(), mode(path)) == (b"caf\xe9", 0o600)
    replace_text(path, "shown", private=False)
    assert (path.read_text(), mode(path)) == ("shown", 0o640)


def test_homes(monkeypatch, tmp_path):
    """A path below a home is that; one below the home of nobody is left as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/x") == tmp_path / "x"
    assert str(expanded("~nobody-at-all/x")) == "~nobody-at-all/x"
    assert str(expanded("a/~")) == "a/~"
