"""The tiny model's files, and settings of nobody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tiny_model import Tiny


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """The tiny model's content and writers."""
    return Tiny()


@pytest.fixture(scope="session")
def tiny_gguf(tiny, tmp_path_factory) -> Path:
    """The tiny model as a GGUF file; not to be changed."""
    return tiny.gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(tiny, tmp_path_factory) -> Path:
    """The tiny model as a safetensors folder; not to be changed."""
    return tiny.folder(tmp_path_factory.mktemp("tiny") / "folder")


@pytest.fixture(scope="session")
def llm(tiny_gguf):
    """The tiny model, loaded; sequences on it are independent of each other."""
    from propolis_workers.llm import LLM

    return LLM.load(tiny_gguf)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch, tmp_path_factory):
    """No test sees the settings of whoever runs it."""
    for name in os.environ:
        if name.startswith("PROPOLIS_") and not name.startswith("PROPOLIS_REQUIRE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
