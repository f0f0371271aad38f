"""Pulls and the folder that they fill: a full disk, permissions, and who else is at work there."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_hub import BIG
from fake_hub import FILE
from fake_hub import REPO
from fake_hub import left

from propolis_workers.models import parts
from propolis_workers.models import pull as pulling
from propolis_workers.models.names import parse
from propolis_workers.models.store import Store


class Silent:
    """Who is told of a pull, and says nothing."""

    def say(self, line):
        """Something happened."""

    def progress(self, done, total):
        """So many bytes are here."""


def test_removed_meanwhile(repository, models, folder, monkeypatch):
    """A model that somebody removes at the end of its pull is said to be gone."""
    monkeypatch.setattr(pulling, "_is_here", lambda *_: True)
    done = models("pull", REPO)
    assert done.code == 1
    assert f"{FILE} was removed meanwhile: pull it again" in done.err


def test_full_disk(repository, models, folder, monkeypatch):
    """A disk that is full is said before the first byte; one that fills, when it is."""
    usage = pulling.shutil.disk_usage
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda at: usage(at)._replace(free=1000))
    done = models("pull", REPO)
    assert done.code == 1
    assert f"{REPO} needs 0.30 MB more, and 0.00 MB are free in {folder}" in done.err
    assert "PROPOLIS_MODELS_DIR" in done.err
    assert not repository.downloads()
    monkeypatch.setattr(pulling.shutil, "disk_usage", usage)

    class Full(parts.FileIO):
        def write(self, chunk):
            if self.tell() > 50_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(chunk[:60_000])

    monkeypatch.setattr(parts, "FileIO", Full)
    done = models("pull", REPO)
    assert done.code == 1
    assert "cannot be written (No space left on device)" in done.err
    assert "what came stays" in done.err
    monkeypatch.undo()


def test_no_permission(repository, models, folder):
    """A folder that may not be written is named."""
    folder.mkdir(parents=True)
    (folder / REPO.partition("/")[0]).write_text("a file")
    done = models("pull", REPO)
    assert done.code == 1
    assert "cannot be written (Not a directory)" in done.err


def test_two_at_once(repository, models, folder):
    """Of two pulls of a file the second one says so."""
    repository.cut = [200_000] + [0] * 20
    models("pull", REPO)
    (part,) = left(folder)
    with pulling._alone(folder / part):
        done = models("pull", REPO)
    assert done.code == 1
    assert "another `propolis models pull` is at" in done.err


def test_what_is_pulled_is_not_removed(repository, models, folder):
    """From its first look at what is here until a pull has ended, ``rm`` takes nothing from it."""
    models("pull", f"{REPO}:Q8_0")
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/x-Q4_0.gguf").write_bytes(b"x")
    checked, seen = pulling._checksum, []

    def look(path, file):
        seen.append(models("rm", "a/b", f"{REPO}:Q8_0", "--yes", "--json"))
        return checked(path, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulling, "_checksum", look)
        assert models("pull", f"{REPO}:Q8_0").code == 0
    (refused,) = seen
    assert refused.code == 2
    assert f"{REPO}:Q8_0 is being pulled, or another of its folder: end that" in refused.err
    assert [row["name"] for row in json.loads(refused.out)] == ["a/b:Q4_0"]  # that one is gone
    assert left(folder) == [f"{REPO}/Model-Q8_0.gguf"]
    assert models("rm", REPO, "--yes").code == 0
    assert not folder.exists() or not any(folder.iterdir())


def test_who_pulls_waits_for_who_removes(repository, models, folder):
    """A folder that ``rm`` takes away is made again."""
    (folder / REPO).mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with parts.alone_in(folder / REPO):
            pulled = pool.submit(pulling.pull, parse(REPO), Store(folder), Silent())
            with pytest.raises(TimeoutError):
                pulled.result(0.2)
            (folder / REPO).rmdir()
        assert pulled.result(30).fetched == len(BIG)
    assert left(folder) == [f"{REPO}/{FILE}"]
