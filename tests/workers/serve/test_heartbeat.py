"""Heartbeats, and a hive that takes them, or does not."""

from __future__ import annotations

import json
import random
import re
import threading
from contextlib import contextmanager
from datetime import UTC
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from patience import patience
from patience import until
from structlog.testing import capture_logs

from propolis import __version__
from propolis.errors import UsageError
from propolis_workers.serve import heartbeat as beats
from propolis_workers.serve.engine import Status
from propolis_workers.serve.heartbeat import Heartbeat
from propolis_workers.serve.heartbeat import Worker


class Hive:
    """Takes heartbeats as it is told to: a status, or None to say nothing."""

    def __init__(self, port=0) -> None:
        self.heard: list[dict] = []
        self.asked: list[tuple[str, str]] = []
        self.status: int | None = 200
        self.release = threading.Event()
        hive = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                hive.take(self)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_):
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, request) -> None:
        """Answer one request."""
        self.asked.append((request.command, request.path))
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self.status is None:
            self.release.wait(patience(30))
            return
        if self.status == 200:
            assert request.headers["Content-Type"] == "application/json"
            assert request.headers["Authorization"] is None
            self.heard.append(json.loads(body))
        request.send_response(self.status)
        request.send_header("Location", self.url + "/elsewhere")
        request.send_header("Content-Length", "0")
        request.end_headers()

    def close(self) -> None:
        """Refuse connections from now on."""
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hive():
    """One that listens."""
    one = Hive()
    yield one
    one.close()


@pytest.fixture
def engine():
    """What a heartbeat asks of an engine."""
    return SimpleNamespace(status=Status("ready", ready={"device": "rocm:1"}), waiting=0)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nothing takes as long as it does for people."""
    monkeypatch.setattr(beats, "_AGAIN", (0.01, 0.02))
    monkeypatch.setattr(beats, "_PATIENCE", patience(0.4))
    monkeypatch.setattr(beats, "_LOOK", 0.01)


@contextmanager
def beating(hive, engine, every=0.05):
    """Heartbeats to a hive, meanwhile."""
    engine.draining = False
    beat = Heartbeat(hive.url, Worker("w-1", "my/model", 8080, "rocm:0"), engine, every=every)
    beat.start()
    yield beat
    beat.stop()


def test_what_it_says(hive, engine):
    """Who it is, how it is and when, as the protocol has it."""
    state = random.getstate()
    with beating(hive, engine):
        until(lambda: len(hive.heard) > 1)
    assert random.getstate() == state  # whoever seeded that has it to himself
    assert set(hive.asked) == {("POST", "/v1/worker-heartbeat")}
    told = hive.heard[0]
    assert set(told) == {"worker", "timestamp"}
    assert told["worker"] == {
        "id": "w-1",
        "model_id": "my/model",
        "device": "rocm:1",
        "port": 8080,
        "status": "ready",
        "implementation": "propolis",
        "version": __version__,
    }
    at = datetime.fromisoformat(told["timestamp"])
    assert abs((datetime.now(UTC) - at).total_seconds()) < patience(30)
    assert beats.EVERY == 30


@pytest.mark.parametrize(
    ("state", "waiting", "draining", "said"),
    [
        ("loading", 0, False, "loading"),
        ("ready", 0, False, "ready"),
        ("ready", 2, False, "busy"),
        ("ready", 0, True, "busy"),
        ("restarting", 2, False, "loading"),
        ("failed", 0, False, "error"),
        ("stopped", 0, True, "error"),
    ],
)
def test_the_status_is_true(engine, state, waiting, draining, said):
    """What a hive is told is what /v1/ready says, in the protocol's words."""
    engine.status, engine.waiting, engine.draining = Status(state), waiting, draining
    beat = Heartbeat("http://127.0.0.1:1", Worker("w", "m", 1, "cpu"), engine)
    assert beat.message()["worker"]["status"] == said


def test_another_state_is_said_at_once(hive, engine):
    """A hive need not wait half a minute to hear that a worker is ready, or failed."""
    engine.status = Status("loading")
    with beating(hive, engine, every=600):
        for state, said in (("ready", "ready"), ("failed", "error")):
            until(lambda: hive.heard)
            engine.status = Status(state)
            until(lambda said=said: hive.heard[-1]["worker"]["status"] == said)


@pytest.mark.parametrize("fault", [500, 404, 302, None, "refuses"])
def test_a_hive_that_fails(engine, fault):
    """It is tried again until it arrives; that it fails is said once, and once that it is over."""
    hive = Hive()
    if fault == "refuses":
        hive.close()
    else:
        hive.status = fault
    with capture_logs() as logs, beating(hive, engine, every=0.05) as beat:
        until(lambda: beat._failing)
        if fault == "refuses":
            hive = Hive(hive.port)
        else:
            until(lambda: len(hive.asked) > 3)
        hive.status = 200
        until(lambda: len(hive.heard) > 2)
        until(lambda: not beat._failing)
    hive.close()
    assert {path for _, path in hive.asked} == {"/v1/worker-heartbeat"}  # nobody went elsewhere
    said = [(log["event"], log["log_level"]) for log in logs]
    assert said == [("hive.lost", "warning"), ("hive.back", "warning")]
    expected = {None: "timed out", "refuses": "refused"}.get(fault, f"the answer is {fault}")
    assert expected in logs[0]["error"].lower()
    assert ("not followed" in logs[0]["error"]) == (fault == 302)


def test_failing_has_pauses(hive, engine, monkeypatch):
    """After failures in a row it is asked ever less often, and not less than usual."""
    pauses = []
    monkeypatch.setattr(beats, "_AGAIN", (1.0, 2.0, 4.0))
    monkeypatch.setattr(Heartbeat, "_wait", lambda _, seconds, __: pauses.append(seconds))
    hive.status = 500
    with beating(hive, engine, every=3):
        until(lambda: len(pauses) > 4)
    assert [round(pause / 0.95) for pause in pauses[:5]] == [1, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hive:80", "supported: http://host:port"),
        ("ftp://hive", "supported: http://host:port"),
        ("http://", "supported: http://host:port"),
        ("http://hive:port", "is no URL"),
        ("http://me:secret@hive", "give none of them"),
        ("http://hive/?token=secret", "give none of them"),
        ("http://hive/a\r\nX: y", "supported: http://host:port"),
    ],
)
def test_urls(engine, url, said):
    """What is no plain URL of a server is refused; what may be a secret is not repeated."""
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        Heartbeat(url, Worker("w", "m", 1, "cpu"), engine)
    assert "secret" not in str(refused.value)


def test_a_server_beats(serving, hive):
    """A server that answers goes on doing so while its hive fails, and says that it is ready."""
    hive.status = None
    server = serving(hive=hive.url)
    until(lambda: hive.asked)
    assert server.chat().status_code == 200
    hive.status = 200
    hive.release.set()
    until(lambda: hive.heard and hive.heard[-1]["worker"]["status"] == "ready")
    assert hive.heard[-1]["worker"]["model_id"] == "tiny"


@pytest.mark.slow
def test_the_ancestors_arguments(program, hive):
    """A hive starts it as it started the ancestor, and hears its name, its model's and its port."""
    server = program("--worker-id", "w-7", "--model-ref", "org/tiny:q4", "--hive-url", hive.url)
    until(lambda: hive.heard and hive.heard[-1]["worker"]["status"] == "ready")
    said = hive.heard[-1]["worker"]
    assert (said["id"], said["model_id"], said["device"]) == ("w-7", "org/tiny:q4", "cpu")
    assert said["port"] == server.http.base_url.port
    for name in ("org/tiny:q4", "tiny"):
        assert server.http.get(f"/v1/models/{name}").json()["id"] == "org/tiny:q4"


@pytest.mark.slow
def test_two_models_are_two_workers(program, hive, sd_folder):
    """A hive, whose workers have one model each, hears of both models, each by its own name."""
    program("--images", str(sd_folder), "--worker-id", "w-7", "--hive-url", hive.url)

    def ready():
        said = [one["worker"] for one in hive.heard if one["worker"]["status"] == "ready"]
        return {(one["id"], one["model_id"]) for one in said}

    until(lambda: ready() == {("w-7", "tiny"), ("w-7-images", "tiny-sd")}, 60)
