"""Ollama's API, by Ollama's own client."""

from __future__ import annotations

import asyncio
import json

import ollama
import pytest

from propolis_workers.serve import ollama as routes


MESSAGES = [{"role": "user", "content": "the thing"}]
GREEDY = {"temperature": 0, "repeat_penalty": 1.0, "num_predict": 9}


@pytest.fixture(scope="module")
def client(server):
    """The official client, unchanged."""
    made = ollama.Client(host=server.url)
    yield made
    made._client.close()


@pytest.fixture(scope="module")
def alone(llm):
    """The same answer without a server."""
    generation = llm.chat(MESSAGES, max_tokens=9)
    return "".join(generation), generation.finish


def test_chat(client, alone):
    """A chat is answered as the command line answers it, in one piece and as a stream."""
    text, finish = alone
    got = client.chat("tiny", MESSAGES, options=GREEDY)
    assert got.message.content == text
    assert got.done
    assert got.done_reason in ("stop", "length")
    assert (got.prompt_eval_count, got.eval_count) == (finish.prompt_tokens, len(finish.ids))
    assert got.total_duration >= got.eval_duration > 0
    pieces = list(client.chat("tiny:latest", MESSAGES, options=GREEDY, stream=True))
    assert text == "".join(piece.message.content for piece in pieces)
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_durations(client, monkeypatch):
    """The whole lasts from the coming of the request, however soon the engine answers."""
    respond = routes._respond

    async def late(*arguments):
        await asyncio.sleep(0.3)
        return await respond(*arguments)

    monkeypatch.setattr(routes, "_respond", late)
    for got in (
        client.chat("tiny", MESSAGES, options=GREEDY),
        client.generate("tiny", "the thing", options=GREEDY),
    ):
        assert got.total_duration >= 0.3e9
        assert got.total_duration >= got.prompt_eval_duration + got.eval_duration


def test_generate(client, llm, alone):
    """A prompt goes through the chat template, unless it is raw."""
    assert client.generate("tiny", "the thing", options=GREEDY).response == alone[0]
    raw = "".join(llm.complete("the ", max_tokens=9))
    assert client.generate("tiny", "the ", raw=True, options=GREEDY).response == raw
    pieces = client.generate("tiny", "the ", raw=True, options=GREEDY, stream=True)
    assert raw == "".join(piece.response for piece in pieces)
    spoken = [{"role": "system", "content": "be on"}, *MESSAGES]
    told = "".join(llm.chat(spoken, max_tokens=9))
    assert told == client.generate("tiny", "the thing", system="be on", options=GREEDY).response


def test_json(client):
    """`format` is a JSON schema."""
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    for seed in range(3):  # what is not listed is not written, as with Ollama
        options = {"num_predict": 40, "seed": seed, "temperature": 2}
        told = client.chat("tiny", MESSAGES, format=schema, options=options)
        assert json.loads(told.message.content) == {"a": 7}


def test_what_is_there(client):
    """Tags, show and the version tell of the one model."""
    (only,) = client.list().models
    assert only.model == "tiny:latest"
    assert only.size > 0
    shown = client.show("tiny")
    assert shown.details.family == "llama"
    assert shown.modelinfo["llama.context_length"] == 96
    assert "completion" in shown.capabilities


def test_older_clients_say_name(server):
    """`/api/show` is asked for a model by `name` too."""
    got = server.http.post("/api/show", json={"name": "tiny"})
    assert got.json()["details"]["family"] == "llama"


def test_nothing_asked_is_loading(client):
    """An empty prompt, by which clients load a model, is answered at once."""
    assert client.generate("tiny", "").done_reason == "load"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": "other"}, "there is 'tiny'"),
        ({"format": "yaml"}, "format"),
        ({"context": [1, 2]}, "context is not supported here"),
        ({"logprobs": True}, "logprobs is not supported here"),
        ({"options": {"mirostat": 2}}, "options.mirostat is not supported here"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"function": {"name": "f"}}]}, "takes no tools"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"options": {"temperature": -1}}, "temperature"),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, "no room for an answer"),
    ],
)
def test_what_is_not_served_is_named(server, wrong, says):
    """What would change the answer is refused, not ignored."""
    got = server.http.post("/api/chat", json={"model": "tiny", "messages": MESSAGES, **wrong})
    assert got.status_code in (400, 404)
    assert says in got.text


def test_what_runs(client, server):
    """The one model, for ever; none while it is being loaded."""
    (running,) = client.ps().models
    assert (running.model, running.size_vram) == ("tiny:latest", 0)
    assert running.size == server.service.nbytes
    assert running.expires_at.year > 2300
    status = server.engine.status
    state, status.state = status.state, "loading"
    try:
        assert not client.ps().models
    finally:
        status.state = state


def test_a_model_that_writes_gives_no_embeddings(client):
    """It says so, by its name."""
    for ask in (client.embed, client.embeddings):
        with pytest.raises(ollama.ResponseError, match="tiny writes text and gives no embeddings"):
            ask("tiny", "a")
