"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from propolis.errors import UsageError
from propolis.files import expanded
from propolis.files import replace_text
from propolis.files import replacing
from propolis.files import write_answer


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


LIMITED = """
import resource, signal, sys
from pathlib import Path
from propolis.errors import UsageError
from propolis.files import write_answer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_answer(Path(sys.argv[1]), "new" * 1000)
except UsageError as exc:
    sys.exit(str(exc))
"""


@pytest.mark.parametrize("before", [None, "old"])
def test_an_answer_that_is_cut(tmp_path, before):
    """Where half of it fits, the error names the file, which is as it was, or is not there."""
    path = tmp_path / "file"
    if before is not None:
        path.write_text(before)
        path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"{path} cannot be written: File too large\n")
    assert [p.read_text() for p in tmp_path.iterdir()] == [before] * (before is not None)
    assert before is None or mode(path) == 0o600


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("kept", [None, 0o600, 0o755, 0o666])
def test_an_answer_keeps_what_its_file_is(tmp_path, kept):
    """Another file takes its place, with the same mode; a new one has that of new files."""
    path = tmp_path / "file"
    if kept is not None:
        path.write_text("old")
        path.chmod(kept)
        held = path.open()
    write_answer(path, "new")
    assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("new", ["file"])
    assert mode(path) == (0o640 if kept is None else kept)
    if kept is not None:
        with held:
            assert held.read() == "old"


def test_an_answer_into_a_file_of_two_names(tmp_path):
    """Both have it."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("old")
    other.hardlink_to(path)
    write_answer(path, "new")
    assert other.read_text() == "new"


@pytest.mark.parametrize("who", ["geteuid", "getegid"])
def test_an_answer_into_a_file_of_somebody_else(tmp_path, monkeypatch, who):
    """It stays theirs."""
    path = tmp_path / "file"
    path.write_text("old")
    inode = path.stat().st_ino
    monkeypatch.setattr(os, who, lambda: 12345)
    write_answer(path, "new")
    assert (path.read_text(), path.stat().st_ino) == ("new", inode)


def test_an_answer_into_a_file_that_may_not_be_written(tmp_path, monkeypatch):
    """It is an error, though its folder may be."""
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    if os.geteuid() == 0:  # who may all
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        monkeypatch.setattr(os, "access", lambda at, _: Path(at) != path)
        monkeypatch.setattr(Path, "open", Mock(side_effect=refused))
    with pytest.raises(UsageError, match=f"^{path} cannot be written: Permission denied$"):
        write_answer(path, "new")
    monkeypatch.undo()
    assert (path.read_text(), mode(path)) == ("old", 0o444)


def test_an_answer_through_a_link(tmp_path):
    """What a link leads to is replaced, and the link stays, also one that led nowhere."""
    link, path = tmp_path / "link", tmp_path / "file"
    link.symlink_to("file")
    for text in ("first", "second"):
        write_answer(link, text)
        assert (link.is_symlink(), path.read_text()) == (True, text)


def test_an_answer_through_links_that_lead_round(tmp_path):
    """They are an error, and stay."""
    link = tmp_path / "link"
    link.symlink_to("link")
    with pytest.raises(UsageError, match=r"written: Too many levels of symbolic links$"):
        write_answer(link, "new")
    assert link.is_symlink()


def test_an_answer_into_a_pipe(tmp_path):
    """By its name: whoever reads it gets the answer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    found: list[str] = []
    reader.start()
    write_answer(pipe, "new")
    reader.join()
    assert (found, stat.S_ISFIFO(pipe.stat().st_mode)) == (["new"], True)


def test_an_answer_into_a_file_that_is_open(tmp_path):
    """By its number: it is cut, as any file that is opened to be written, and stays that file."""
    with (tmp_path / "file").open("a+") as file:
        file.write("old, and longer")
        file.flush()
        write_answer(Path(f"/dev/fd/{file.fileno()}"), "new")
        file.seek(0)
        assert file.read() == "new"
        assert os.path.sameopenfile(file.fileno(), os.open(file.name, os.O_RDONLY))


@pytest.mark.parametrize("name", ["/dev/stdout", "link", "../file"])
def test_an_answer_into_standard_output(tmp_path, name):
    """By whatever name: what is printed afterwards goes to the same file."""
    source = """
    import sys
    from pathlib import Path
    from propolis.files import write_answer
    write_answer(Path(sys.argv[1]), "new")
    print("more")
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/dev/stdout")
    with (tmp_path / "file").open("a") as file:
        command = [sys.executable, "-c", textwrap.dedent(source), name]
        subprocess.run(command, stdout=file, cwd=folder, check=True)
    assert (tmp_path / "file").read_text() == "newmore\n"
    assert (folder / "link").is_symlink()


def test_homes(monkeypatch, tmp_path):
    """A path below a home is that; one below the home of nobody is left as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/x") == tmp_path / "x"
    assert str(expanded("~nobody-at-all/x")) == "~nobody-at-all/x"
    assert str(expanded("a/~")) == "a/~"
