"""What is wrong with a prompt is found before weights are read, minutes of a large file."""

from __future__ import annotations

import pytest

from propolis.cli import main
from propolis_workers.llm import LLM
from propolis_workers.llm import session


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
