"""A server when things go wrong: its engine, its clients, too many of them."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from click.testing import CliRunner
from patience import until

from propolis.cli import cli


# An answer of many tokens: those that would end it are never drawn.
ENDLESS = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 80,
    "stream": True,
    "logit_bias": {"265": -100, "264": -100, "263": -100},
}


def test_many_at_once(server):
    """More requests than run at once get what they get alone."""
    texts = [f"number {n % 7}" for n in range(12)]
    expected = {text: server.chat(text).json()["choices"][0]["message"] for text in set(texts)}
    with ThreadPoolExecutor(12) as pool:
        got = list(pool.map(server.chat, texts))
    for text, answer in zip(texts, got, strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"] == expected[text]
    until(lambda: server.now()["blocks_taken"] == 0)


def test_health(server):
    """Who asks is told whether the server lives, is ready, and what it serves."""
    health = server.http.get("/health").json()
    assert datetime.fromisoformat(health.pop("timestamp")).tzinfo is not None
    assert health == {"status": "healthy", "state": "ready"}
    ready = server.http.get("/v1/ready").json()
    assert (ready["ready"], ready["state"], ready["model_loaded"]) == (True, "idle", True)
    info = server.http.get("/info").json()
    assert (info["model"], info["device"], info["context"]) == ("tiny", "cpu", 96)
    progress = server.http.get("/v1/loading/progress").text
    assert json.loads(progress.removeprefix("data: ")) == {"stage": "ready"}


def test_placement_and_memory(server):
    """Who asks is told how much memory the device has, and who serves each op."""
    until(lambda: "memory" in server.http.get("/info").json()["now"])
    server.chat()
    until(lambda: "attention" in server.http.get("/info").json()["now"]["placement"]["ops"])
    now = server.http.get("/info").json()["now"]
    assert 0 < now["memory"]["free"] < now["memory"]["total"]
    assert now["placement"]["device"] == "cpu"
    assert now["placement"]["ops"]["attention"] == ["cpu_ref (propolis-cpu-ref 0.1.0)"]
    assert now["placement"]["cpu_instead"] == now["placement"]["decomposed"] == {}


def test_metrics(server):
    """Requests, tokens and times are counted for Prometheus."""
    server.chat()
    text = server.http.get("/metrics").text
    counted = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(counted['propolis_tokens_total{kind="drawn"}']) >= 8
    assert float(counted["propolis_time_to_first_token_seconds_count"]) >= 1
    assert counted['propolis_ready{kind="llm"}'] == "1.0"
    assert float(counted['propolis_requests_total{end="max_tokens",kind="llm"}']) >= 1


def test_token(serving):
    """Without the token nothing is answered but /health; what is wrong is said."""
    server = serving(token="secret")
    assert server.chat().status_code == 200
    bare = server.http.get("/v1/models", headers={"Authorization": ""})
    assert (bare.status_code, bare.json()["error"]["code"]) == (401, "MISSING_API_KEY")
    for wrong in ("Bearer secreT", "Bearer", "Basic secret", "Bearer secret2"):
        got = server.http.get("/v1/models", headers={"Authorization": wrong})
        assert (got.status_code, got.json()["error"]["code"]) == (401, "INVALID_API_KEY")
    assert server.http.get("/health", headers={"Authorization": ""}).status_code == 200


@pytest.mark.slow
def test_too_large_a_body(serving):
    """A body beyond the limit is refused, whether it says how long it is or not."""
    server = serving(most_bytes=1000)
    assert server.chat("x" * 2000).status_code == 413
    got = server.http.post("/v1/chat/completions", content=(b"x" * 100 for _ in range(20)))
    assert got.status_code == 413


def test_the_engine_is_killed(serving):
    """Answers on their way end with an error; soon another engine gives the right ones."""
    server = serving()
    expected = server.chat().json()["choices"][0]["message"]
    os.killpg(server.engine._process.pid, signal.SIGSTOP)  # it answers nothing before its end
    with server.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as stream:
        lines = stream.iter_lines()
        next(lines)
        until(lambda: server.engine.waiting == 1)
        os.killpg(server.engine._process.pid, signal.SIGKILL)
        said = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "was ended by SIGKILL; try again" in said[-1]["error"]["message"]
    gone = server.chat()
    if gone.status_code != 200:  # it may be back already
        assert gone.status_code == 503
        assert gone.headers["retry-after"]
    until(lambda: server.engine.status.state == "ready", 60)
    assert server.engine.status.restarts == 1
    assert server.chat().json()["choices"][0]["message"] == expected


def test_whoever_goes_away_cancels(serving):
    """A closed connection frees its blocks at once, of a stream and of an answer in one piece."""
    server = serving()
    for stream in (True, False):
        raw = json.dumps({**ENDLESS, "stream": stream, "n": 8}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(raw)}\r\nContent-Type: application/json\r\n\r\n"
        with server.frozen(), socket.create_connection((host, int(port))) as wire:
            wire.sendall(head.encode() + raw)
            until(lambda: server.engine.waiting == 8)
        until(lambda: server.engine.waiting == 0)
        server.chat()
        until(lambda: server.now()["blocks_taken"] == 0)


def test_more_than_may_wait(serving):
    """What is beyond the queue is refused at once, and told when to come back."""
    server = serving(most=1, most_waiting=2)
    with (
        server.frozen(),
        server.http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "n": 3}),
    ):
        until(lambda: server.engine.waiting == 3)
        got = server.chat()
        assert got.status_code == 429
        assert got.headers["retry-after"] == "1"
        assert got.json()["error"]["type"] == "rate_limit_error"
    until(lambda: server.engine.waiting == 0)
    assert server.chat().status_code == 200
    never = server.chat(n=4)
    assert never.status_code == 400
    assert "supported: 3" in never.json()["error"]["message"]


@pytest.mark.slow
def test_numbers_are_of_now(serving):
    """After the last client went away nothing is said to run or to be taken."""
    server = serving()
    server.engine.status.now = {"running": 1, "blocks_taken": 1}  # as after some step
    with server.frozen():
        with server.http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "n": 4}):
            until(lambda: server.engine.waiting == 4)
        until(lambda: server.engine.waiting == 0)
    until(lambda: (server.now()["running"], server.now()["blocks_taken"]) == (0, 0))


@pytest.mark.slow
def test_signals_to_all_of_a_group(serving):
    """Signals to the engine alone end nothing: the server says when."""
    server = serving()
    expected = server.chat().json()["choices"][0]["message"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.killpg(server.engine._process.pid, number)
    assert server.chat().json()["choices"][0]["message"] == expected
    assert server.engine.status.restarts == 0


@pytest.mark.slow
def test_an_engine_that_says_nonsense(serving, monkeypatch):
    """A line that is none of the engine's ends it: answers get an error, and another one comes."""
    server = serving()
    hear, told = server.engine._hear, []

    async def damaged(message):
        if not told and message["is"] == "step":
            told.append(message)
            raise ValueError("no JSON")
        await hear(message)

    monkeypatch.setattr(server.engine, "_hear", damaged)
    assert server.chat().status_code == 503
    until(lambda: server.engine.status.state == "ready", 60)
    assert server.chat().status_code == 200


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded(serving, tiny_gguf, tmp_path, monkeypatch):
    """Where there is no room for the cache the server says so, and is not started again."""
    server = serving(tokens=1 << 40)
    assert server.engine.status.state == "failed"
    health = server.http.get("/health")
    assert (health.status_code, health.json()["state"]) == (503, "failed")
    ready = server.http.get("/v1/ready")
    assert (ready.status_code, ready.json()["state"]) == (503, "error")
    assert "a cache of" in ready.json()["error"]
    assert "a cache of" in server.chat().json()["error"]["message"]


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",  # noqa: S104  (refused)
        "::",
        "192.168.1.2",
        "example.org",
    ],
)
def test_nothing_is_open_by_accident(host, tiny_gguf):
    """An address that others reach needs a token, or the word that it does not."""
    result = CliRunner().invoke(cli, ["serve", "-m", str(tiny_gguf), "--host", host])
    assert result.exit_code != 0
    assert "PROPOLIS_TOKEN" in str(result.exception)
