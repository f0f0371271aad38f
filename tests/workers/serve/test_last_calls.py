"""Answers end with the last call that they may have."""

from __future__ import annotations

import asyncio
import json

import pytest
from tool_templates import TEMPLATES

from propolis_workers.llm.tools.calls import Call
from propolis_workers.llm.tools.reader import Reader
from propolis_workers.serve import tool_use
from propolis_workers.serve.answers import DeadlineError
from propolis_workers.serve.answers import EngineGoneError
from propolis_workers.serve.answers import Until
from propolis_workers.serve.tool_use import Function


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "now")]
ASKED = {
    "messages": [{"role": "user", "content": "What is the weather in Bern?"}],
    "tools": TOOLS,
    "max_tokens": 400,
    "parallel_tool_calls": False,
}


@pytest.fixture(scope="module")
def server(serving, tiny, tmp_path_factory):
    """A server with room for what templates say of tools."""
    path = tmp_path_factory.mktemp("tools") / "tiny.gguf"
    model = tiny.gguf(path, metadata={"llama.context_length": 2048})
    return serving(model=model, context=2048, tokens=8192, template=TEMPLATES["hermes"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_with_the_last_call_that_it_may_have(server, said, stream):
    """What follows is not shown, and the call is whole whatever the length is."""
    said(server, "I look. ", CALL, *["\nAnd more"] * 90, reason="MAX_TOKENS")
    body = {**ASKED, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    got = server.http.post("/v1/chat/completions", json=body)
    if stream:
        lines = [line.removeprefix("data: ") for line in got.text.split("\n\n")[:-2]]
        chunks = [json.loads(line) for line in lines]
        choices = [one["choices"][0] for one in chunks if one["choices"]]
        text = "".join(one["delta"].get("content") or "" for one in choices)
        calls = [call for one in choices for call in one["delta"].get("tool_calls", [])]
        why, usage = choices[-1]["finish_reason"], chunks[-1]["usage"]
    else:
        (choice,) = got.json()["choices"]
        text, calls = choice["message"]["content"], choice["message"]["tool_calls"]
        why, usage = choice["finish_reason"], got.json()["usage"]
    assert (text, len(calls), why, usage["completion_tokens"]) == ("I look.", 1, "tool_calls", 3)


@pytest.mark.parametrize("error", [EngineGoneError, lambda why: DeadlineError(Until(0, why))])
def test_a_whole_call_outlives_its_engine(server, error):
    """What was said in full is told, whether or not how it went comes any more."""

    async def answer():
        for piece in ("I look.", CALL):
            yield {"token": 65, "text": piece}
        raise error("gone")

    async def go():
        use = tool_use.tool_use(server.service.prompts, [Function(name="weather")], most=1)
        return [one async for one in tool_use.with_calls(answer(), use, lambda: None)]

    *_, called, last = asyncio.run(go())
    assert called["calls"][0]["call"].name == "weather"
    assert (last["finish"]["tokens"], last["finish"]["whole"]) == (2, True)


def test_an_answer_with_all_its_calls_is_computed_no_further(server, monkeypatch):
    """The engine ends it, and tells how it went as of any other."""

    class Third(Reader):
        """Finds a call in the third piece of whatever is said."""

        pieces = 0

        def push(self, text, *, final=False):
            self.pieces += text != ""
            if self.pieces < 3 or self.whole:
                return []
            self._left = 0
            return [Call("now", {})]

    def ended() -> float:
        lines = server.http.get("/metrics").text.splitlines()
        start = 'propolis_requests_total{end="stop_sequence"'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))

    monkeypatch.setattr(tool_use, "Reader", Third)
    before = ended()
    body = {**ASKED, "ignore_eos": True, "max_tokens": 1500}
    got = server.http.post("/v1/chat/completions", json=body).json()
    assert got["choices"][0]["finish_reason"] == "tool_calls"
    assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
    assert 3 <= got["usage"]["completion_tokens"] < 1000
    assert ended() == before + 1
