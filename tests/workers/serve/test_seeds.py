"""Seeds that requests name."""

from __future__ import annotations

import pytest

from propolis_workers.serve.answering import seed_of


def openai(server, seed):
    """What a chat says by OpenAI's API."""
    message = {"role": "user", "content": "hi"}
    body = {"messages": [message], "temperature": 2, "max_tokens": 24, "seed": seed}
    return server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]


def ollama(server, seed):
    """What a prompt is answered by Ollama's."""
    options = {"temperature": 2, "num_predict": 24, "seed": seed}
    body = {"prompt": "hi", "stream": False, "options": options}
    return server.http.post("/api/generate", json=body).json()["response"]


@pytest.mark.parametrize("ask", [openai, ollama])
def test_seeds(server, ask):
    """-1 is none, as llama.cpp's clients say it; others below 0 are no positive one's."""
    assert ask(server, -2) == ask(server, -2)
    said = [ask(server, seed) for seed in (-1, -1, 1, 2, -2)]
    assert len({str(one) for one in said}) == 5


def test_no_seed_is_anothers():
    """Neither those of choices nor those below 0."""
    found = [seed_of(seed, choice) for seed in (-3, -2, 0, 1, 2, 3) for choice in range(16)]
    assert len(set(found)) == len(found)
    assert found[2 * 16] == 0
    assert {seed_of(None), seed_of(-1), seed_of(-1, 3)} == {None}
