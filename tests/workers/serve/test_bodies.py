"""Bodies that cannot be read, or that are thousands of mistakes: refused, and in no log."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from propolis_workers.serve.bodies import MOST_VALUES
from propolis_workers.serve.bodies import expect_readable
from propolis_workers.serve.image_jobs import ImageGeneration
from propolis_workers.serve.ollama import Chat
from propolis_workers.serve.ollama import Generate
from propolis_workers.serve.openai_types import ChatRequest
from propolis_workers.serve.openai_types import CompletionRequest
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.text_jobs import Infer


ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/jobs", "/api/generate", "/api/chat"]


@pytest.mark.parametrize("path", ROUTES)
def test_half_a_character(server, caplog, path):
    """A lone surrogate is refused as the client's mistake on every route, and is not in a log."""
    for body in (
        '{"prompt": "MYSECRET \\ud800"}',
        '{"messages": [{"role": "user", "content": "MYSECRET \\uDFFF"}]}',
        '{"MYSECRET \\ud800": 1}',
    ):
        got = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert got.status_code == 400, got.text
        assert "without its other half" in got.text
        assert server.http.get("/health").status_code == 200
    assert "MYSECRET" not in caplog.text


def test_whole_pairs_are_text():
    """Two halves are one character, escaped or not, and a backslash before is no escape."""
    expect_readable(json.dumps({"prompt": "\U0001f41d, ü"}).encode())
    expect_readable(json.dumps({"prompt": "\U0001f41d"}, ensure_ascii=False).encode())
    expect_readable(rb'{"prompt": "a path \\ud800"}')


def test_too_many_values():
    """Values are counted outside of strings: a text may have any number of commas."""
    expect_readable(json.dumps({"prompt": ",," * MOST_VALUES}).encode())
    with pytest.raises(ProblemError, match=f"supported: {MOST_VALUES}"):
        expect_readable(b"[" + b"1," * MOST_VALUES + b"1]")


def test_a_string_that_never_ends():
    """Is looked at once: half a million escapes in it cost no more than others."""
    expect_readable(b'["' + b"," * MOST_VALUES + rb"\"" * 500_000)


def test_what_is_no_text():
    """Half a character in bytes, and other encodings of Unicode, are refused as escapes are."""
    for body in (b'{"prompt": "\xed\xa0\x80"}', '{"prompt": "a"}'.encode("utf-16")):
        with pytest.raises(ProblemError, match="is not UTF-8"):
            expect_readable(body)


MANY = 4000
MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatRequest, {"messages": [{**MESSAGE, "wrong": 1}] * MANY}),
        (ChatRequest, {"messages": [MESSAGE], "documents": [1] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (ChatRequest, {"messages": [{str(n): n for n in range(MANY)}]}),
        (ChatRequest, {str(n): n for n in range(MANY)}),
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [[-1] * MANY] * 64}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * MANY}),
        (Infer, {str(n): n for n in range(MANY)}),
        (Infer, {"prompt": "a", "stop": [1] * MANY}),
        (ImageGeneration, {"loras": [1] * MANY}),
        (Chat, {"messages": [1] * MANY}),
        (Generate, {"prompt": "a", "options": {"stop": [1] * MANY}}),
    ],
)
def test_thousands_of_mistakes(model, body):
    """A few are told, whatever there is: to tell all would take seconds of everybody's time."""
    with pytest.raises(ValidationError) as found:
        model.model_validate(body)
    assert found.value.error_count() <= 64


def test_a_body_of_mistakes(server):
    """The answer names the field, and is short."""
    got = server.http.post("/v1/completions", json={"prompt": [-1] * 200_000})
    assert got.status_code == 400
    assert "prompt" in got.json()["error"]["message"]
    assert len(got.content) < 20_000


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_in_the_log(serving, monkeypatch, asked):
    """There are none, unless that was asked for: then each body has a line, with its number."""
    lines = []
    said = SimpleNamespace(emit=lambda **one: lines.append(one))
    monkeypatch.setattr("propolis_workers.events.HTTP_ASKED", said)
    server = serving(log_prompts=asked)
    got = server.chat("MYSECRET")
    assert got.status_code == 200
    assert [one["request"] for one in lines] == [got.headers["X-Request-Id"]] * asked
    assert all("MYSECRET" in one["body"] for one in lines)
