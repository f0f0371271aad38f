"""A cache folder whose disk is full, and a host without memory."""

from __future__ import annotations

import tempfile

import pytest

from propolis import cli
from propolis.config import Config
from propolis.doctor import examine


class Full:
    """A file that can be made, and takes nothing, as on a disk that is full."""

    def __init__(self, **_):
        """Made."""

    def __enter__(self):
        """Opened."""
        return self

    def __exit__(self, *_):
        """Closed."""

    def write(self, _):
        """Refused as the system does."""
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    """A name can still be made there, so that a file without bytes would find nothing."""
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    config = Config(cache_dir=tmp_path)
    found = {f.name: f.result for f in examine(lambda: config, import_plugins=False)}
    assert found["cache"].status == "warning"
    assert "cannot be written (No space left on device)" in found["cache"].summary


def test_little_memory_is_no_bug(monkeypatch, capsys):
    """What Python or numpy cannot allocate is the machine's, as a device's memory is."""

    def short(*_, **__):
        raise MemoryError("Unable to allocate 28.7 MiB")

    monkeypatch.setattr(cli.cli, "main", short)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["devices"])
    said = capsys.readouterr().err
    assert exit_info.value.code == 3
    assert said.startswith("error: the host, or what this process may have of it, lacks memory: Un")
    assert "bug" not in said
