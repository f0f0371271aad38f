"""A cache folder whose disk is full."""

from __future__ import annotations

import tempfile

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
