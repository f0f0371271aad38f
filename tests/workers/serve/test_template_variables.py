"""Variables of the model's chat template, as clients of other servers give them."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from propolis.errors import UsageError
from propolis_workers.llm.prompts import Prompts


TEMPLATE = (
    "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<quiet>{% endif %}"
)
SAID = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(serving):
    """A server whose model's template may be told not to think."""
    return serving(template=TEMPLATE)


def test_openai(server, rendered):
    """chat_template_kwargs and documents reach the template."""
    asked = {"model": "tiny", "messages": SAID, "max_tokens": 1}
    more = {"chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "A"}]}
    for body, text in ((asked, "hi"), (asked | more, "[A]hi<quiet>")):
        got = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
        assert got.status_code == 200, got.text
        assert rendered.pop() == text


def test_ollama(server, rendered):
    """So does that a model is not to think."""
    asked = {"model": "tiny", "messages": SAID, "stream": False, "options": {"num_predict": 1}}
    got = httpx2.post(f"{server.url}/api/chat", json=asked | {"think": False})
    assert got.status_code == 200, got.text
    assert rendered == ["hi<quiet>"]


def test_what_is_decided(server):
    """What has an argument of its own, and what the model decides, is no variable."""
    asked = {"model": "tiny", "messages": SAID}
    named_self = asked | {"max_tokens": 1, "chat_template_kwargs": {"self": 1}}
    assert httpx2.post(f"{server.url}/v1/chat/completions", json=named_self).status_code == 200
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        body = asked | {"chat_template_kwargs": {name: "x"}}
        got = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
        assert got.status_code == 400, name
        assert name in got.json()["error"]["message"]


def test_in_python(server):
    """In Python likewise."""
    prompts = Prompts(Path("m.gguf"), server.service.prompts.tokenizer, TEMPLATE)
    assert prompts.render(SAID, variables={"enable_thinking": False}) == "hi<quiet>"
    with pytest.raises(UsageError, match="JSON values"):
        prompts.render(SAID, variables={"documents": {1, 2}})


def test_no_template(serving, tiny, tmp_path):
    """Who asks over HTTP is told what can be asked instead, and not what commands take."""
    path = tiny.gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": None})
    server, messages = serving(model=path), [{"role": "user", "content": "hi"}]
    for route, body in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/api/chat", {"messages": messages}),
        ("/api/generate", {"prompt": "hi"}),
    ):
        got = server.http.post(route, json=body)
        said = got.json()["error"]
        text = said if isinstance(said, str) else said["message"]
        assert got.status_code == 400
        assert "m.gguf has no chat template: give raw text to /v1/completions" in text
        for remedy in ("/api/generate", '"raw": true', "--chat-template FILE"):
            assert remedy in text
        assert "--raw" not in text
    raw = {"prompt": "hi", "raw": True, "stream": False, "options": {"num_predict": 1}}
    assert server.http.post("/api/generate", json=raw).status_code == 200
