"""A hub on this machine, a folder of models, and the command in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from fake_hub import BIG
from fake_hub import FILE
from fake_hub import REPO
from fake_hub import Hub
from fake_hub import serving
from fake_hub import sleep_as
from huggingface_hub import close_session
from huggingface_hub import constants

from propolis.cli import main


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Run:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    """The folder of pulled models, empty; nothing of whoever runs the tests is seen, nor a net."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "tokens"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data/propolis/models"


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    """A hub, whose library waits for nothing, and loses little where it is cut."""
    monkeypatch.setattr("propolis_workers.models.hub.CHUNK", 10_000)
    sleep_as(monkeypatch, lambda _: None)
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    close_session()


@pytest.fixture
def repository(hub) -> Hub:
    """A hub with a repository of GGUF files."""
    hub.files[REPO] = {FILE: BIG, "Model-Q8_0.gguf": b"q8", "README.md": b"-"}
    return hub


@pytest.fixture
def models(capsys) -> Callable[..., Run]:
    """Return a function that runs ``propolis models``."""

    def run(*arguments: str) -> Run:
        code = 0
        try:
            main(["models", *arguments])
        except SystemExit as done:
            code = int(done.code or 0)
        return Run(code, *capsys.readouterr())

    return run
