"""Answers that may take so long and no longer."""

from __future__ import annotations

import json

import openai
import pytest
from click.testing import CliRunner
from patience import until

from propolis.cli import cli


# An answer of many tokens: those that would end it are never drawn.
ENDLESS = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 80,
    "logit_bias": {"265": -100, "264": -100, "263": -100},
}
JOB = {"prompt": "the ", "max_tokens": 80}
HEADER = {"X-Request-Timeout": "0.2"}


def freed(server) -> None:
    """Nothing of an answer is left: who asks next gets one."""
    until(lambda: server.engine.waiting == 0)
    assert server.chat().status_code == 200
    until(lambda: server.now()["blocks_taken"] == 0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("how", ["body", "header", "both"])
def test_an_answer_in_one_piece(server, how, n):
    """At its deadline an answer ends with 504, and its blocks are free."""
    body, headers = {**ENDLESS, "n": n}, {}
    if how != "header":
        body["timeout"] = 0.2 if how == "body" else 60
    if how != "body":
        headers["X-Request-Timeout"] = "0.2"
    with server.frozen():
        got = server.http.post("/v1/chat/completions", json=body, headers=headers)
        assert got.status_code == 504
        error = got.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "timeout")
        assert "took longer than the 0.2 s that the request allows" in error["message"]
        assert server.engine.waiting == 0
    freed(server)
    assert 'propolis_requests_total{end="timeout",kind="llm"}' in server.http.get("/metrics").text


def test_a_stream(server):
    """At its deadline a stream ends with an error event, which OpenAI's client raises."""
    with server.frozen():
        body = {**ENDLESS, "stream": True, "timeout": 0.2}
        lines = server.http.post("/v1/chat/completions", json=body).text.split("\n\n")
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked = {"model": "tiny", **ENDLESS, "stream": True}
            stream = client.chat.completions.create(**asked, extra_body={"timeout": 0.2})
            with pytest.raises(openai.APIError, match="took longer"):
                list(stream)
    freed(server)


def test_other_apis(server):
    """Completions, Ollama's API and jobs have deadlines too."""
    quick = {"timeout": 0.2}
    with server.frozen():
        got = server.http.post("/v1/completions", json={"prompt": "the ", **quick})
        assert got.status_code == 504
        for path, body in (
            ("generate", {"prompt": "the "}),
            ("chat", {"messages": ENDLESS["messages"]}),
        ):
            got = server.http.post(f"/api/{path}", json={**body, "stream": False, **quick})
            assert got.status_code == 504
            got = server.http.post(f"/api/{path}", json={**body, **quick})
            assert "took longer" in json.loads(got.text.splitlines()[-1])["error"]
        for more, headers in ((quick, {}), ({}, HEADER)):
            job = server.http.post("/v1/jobs", json={**JOB, **more}, headers=headers).json()
            lines = server.http.get(job["sse_url"]).text.split("\n\n")
            last = json.loads(lines[-3].removeprefix("data: "))
            assert (last["type"], last["code"]) == ("error", "TIMEOUT")
            before = json.loads(lines[-4].removeprefix("data: "))
            assert (before["type"], before["action"]) == ("narration", "failed")
    freed(server)


def test_that_of_the_server(serving):
    """A server's deadline counts where a request says none, or a later one."""
    server = serving(deadline=0.5)
    with server.frozen():
        for more in ({}, {"timeout": 60}):
            body = {**ENDLESS, **more}
            assert server.http.post("/v1/chat/completions", json=body).status_code == 504
    until(lambda: server.engine.waiting == 0)


def test_before_its_deadline(server):
    """An answer that is in time is whole."""
    plain = server.chat().json()["choices"]
    assert server.chat(timeout=60).json()["choices"] == plain


@pytest.mark.parametrize("wrong", [0, -1, 1e9, "soon", True])
def test_what_is_no_time(server, wrong):
    """Seconds are a number above 0, at most a day."""
    got = server.chat(timeout=wrong)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "timeout")
    headers = {"X-Request-Timeout": str(wrong)}
    got = server.http.post("/v1/chat/completions", json=ENDLESS, headers=headers)
    assert got.status_code == 400
    assert "x-request-timeout" in got.json()["error"]["message"].lower()


def test_options(tiny_gguf, tmp_path):
    """The command takes a deadline above 0, and says what is wrong with a chat template."""
    result = CliRunner().invoke(cli, ["serve", "-m", str(tiny_gguf), "--deadline", "0"])
    assert "--deadline" in result.output
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% for %}")
    result = CliRunner().invoke(cli, ["serve", "-m", str(tiny_gguf), "--chat-template", str(bad)])
    assert "the chat template cannot be compiled" in str(result.exception)


def test_images(drawing):
    """Images have deadlines too, in one piece, as a stream and as a job."""
    server = drawing()
    body = {"prompt": "a circle", "steps": 150, "size": "256x256"}
    assert server.http.get("/openapi.json").status_code == 200
    with server.frozen():
        for how in ({"json": {**body, "timeout": 0.2}}, {"json": body, "headers": HEADER}):
            got = server.http.post("/v1/images/generations", **how)
            assert (got.status_code, got.json()["error"]["code"]) == (504, "timeout")
        streamed = {**body, "stream": True, "timeout": 0.2}
        got = server.http.post("/v1/images/generations", json=streamed)
        assert '"code": "timeout"' in got.text
        job = {"operation": "image_generation", "prompt": "a circle", "timeout": 0.2}
        begun = server.http.post("/v1/jobs", json=job).json()
        assert '"code": "TIMEOUT"' in server.http.get(begun["sse_url"]).text
    until(lambda: server.engine.waiting == 0)
