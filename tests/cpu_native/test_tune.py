"""``propolis tune sd``: measured while an image is drawn."""

from __future__ import annotations

import pytest

from propolis.cli import main


pytestmark = pytest.mark.slow


def test_tune_sd(tmp_path, monkeypatch, capsys):
    """A step and the decoder of the packaged model are measured, and what was found is kept."""
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_native,cpu_ref")
    with pytest.raises(SystemExit) as done:
        main(["tune", "sd", "-W", "32", "-H", "32"])
    said = capsys.readouterr()
    assert not done.value.code, said
    assert "conv2d of " in said.err
    assert "kinds of calls that several can do" in said.out
    assert (tmp_path / "cache" / "tuned.json").exists()
