"""What is wrong with a prompt is found before weights are read, minutes of a large file."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import write_folder
from tiny_families import write_gguf

from propolis import default_runtime
from propolis.cli import main
from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm import layers
from propolis_workers.llm import session
from propolis_workers.llm import sought
from propolis_workers.llm.models import build
from propolis_workers.llm.models import expect_weights
from propolis_workers.llm.models import read_config
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


FILES = [
    (name, kind)
    for name, family in FAMILIES.items()
    for kind in ("folder", "gguf")
    if kind == "folder" or family.gguf
]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("the " * 9000,), "no room for an answer; shorten it\n"),
        (("--raw", "the " * 9000), "no room for an answer; shorten it\n"),
        (("a " * 90,), "the context is 96: no room for an answer; shorten the prompt\n"),
        (("the " * 30, "--context", "9"), "shorten it, or raise --context\n"),
        (
            ("--raw", "a " * 20, "--context", "5"),
            "shorten the prompt, or raise --context (the model's is 96)\n",
        ),
        (("--raw", ""), "error: the prompt is empty: give at least one token\n"),
    ],
)
def test_a_prompt(monkeypatch, capsys, tiny_gguf, arguments, why):
    """It is said at once, and nothing of a model or where it ran."""
    monkeypatch.setattr(session, "build", None)
    with pytest.raises(SystemExit) as end:
        main(["llm", "generate", "-m", str(tiny_gguf), *arguments])
    found = capsys.readouterr()
    assert (end.value.code, found.out) == (2, "")
    assert why in found.err
    assert found.err.count("\n") == 1


def test_whoever_asks(monkeypatch, tiny_gguf):
    """It is given what makes the loaded model's tokens; what it raises ends the loading."""
    seen = []
    llm = LLM.load(tiny_gguf, before_weights=lambda *given: seen.extend(given))
    prompts, config = seen
    assert prompts.text("the") == llm.prompts.text("the")
    assert config.context_length == llm.config.context_length
    monkeypatch.setattr(session, "build", None)

    def refuse(*_):
        msg = "not this one"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="not this one"):
        LLM.load(tiny_gguf, before_weights=refuse)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"blk.1.ffn_gate.weight": None}, "tensor blk.1.ffn_gate.weight is missing"),
        ({"output_norm.weight": np.ones(8, np.float32)}, "output_norm.weight has shape (8,), "),
    ],
)
def test_a_model_that_is_not_complete(monkeypatch, tiny, tmp_path, changes, why):
    """What is missing, or of another shape, is found while nothing is read."""
    monkeypatch.setattr(GGUFFile, "data", None)
    with pytest.raises(ModelError, match=re.escape(why)):
        LLM.load(tiny.gguf(tmp_path / "m.gguf", tensors=changes))


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_nothing_is_wanted_that_loading_does_not(monkeypatch, tmp_path, name, kind):
    """A whole model is found to be one, and its weights are looked for under the same names."""
    truth = Truth.read(name)
    if kind == "gguf":
        source = GGUFFile.open(write_gguf(tmp_path / "m.gguf", FAMILIES[name], truth))
    else:
        source = SafetensorsFolder.open(write_folder(tmp_path / "m", truth))
    config = read_config(source)
    found = {}

    def note(module, what):
        look, wanted = getattr(module, what), found.setdefault(what, set())

        def noted(source, tensor, shape):
            wanted.add((tensor, shape))
            return look(source, tensor, shape)

        monkeypatch.setattr(module, what, noted)

    note(layers, "read_weight")
    note(sought, "expected")
    expect_weights(source, config)
    build(source, config, default_runtime().cpu)
    assert found["read_weight"] == found["expected"] != set()
