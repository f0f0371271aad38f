"""Several models in one process of a cluster; test_ray.py runs two such under Ray Serve."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx2
import pytest
import uvicorn
from patience import patience
from patience import until

from propolis.errors import ModelError
from propolis.errors import PropolisError
from propolis_workers.serve.engine import Status
from propolis_workers.serve.replica import Replica


@pytest.fixture
def args(tiny_gguf):
    """What a cluster gives a replica: two names of one model."""
    given = {"model": "", "models": {"a": str(tiny_gguf), "b": str(tiny_gguf)}, "device": "cpu"}
    given |= {"gpus": 0, "threads": 1, "context": 96, "sequences": 2, "queue": 2}
    return {**given, "cache_tokens": None, "drain": 0.1}


@contextmanager
def serving(replica):
    """A replica behind a server, as Ray's is, and its client."""

    async def app(scope, receive, send):
        await replica.asgi(scope, receive, send)

    settings = uvicorn.Config(app, port=0, lifespan="on", log_level="error")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, 60)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(60)) as client:
        yield client
    server.should_exit = True
    thread.join(patience(20))
    assert not thread.is_alive()


def ask(client, model, **options) -> httpx2.Response:
    """Ask a model."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return client.post("/v1/chat/completions", json=body, **options)


@pytest.mark.slow
def test_models(args):
    """The first is there from the start, another once it is asked for; each has its own engine."""
    replica = Replica(args)
    with serving(replica) as client:
        assert set(replica._here) == {"a"}
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["a", "b"]
        for name in ("a", ""):
            assert ask(client, name).json()["model"] == "a"
        assert client.post("/api/generate", json={"model": "a:latest"}).json()["model"] == "a"
        assert client.get("/info").json()["model"] == "a"
        assert set(replica._here) == {"a"}
        assert ask(client, "b").json()["model"] == "b"
        assert set(replica._here) == {"a", "b"}
        header = {"serve_multiplexed_model_id": "b"}
        assert client.get("/info", headers=header).json()["model"] == "b"
        assert ask(client, "a", headers=header).json()["error"]["code"] == "model_not_found"
        for path in ("a", "b"):
            assert client.get(f"/v1/models/{path}").json()["id"] == path
        numbers = {one.engine._process.pid for one in replica._here.values()}
        assert len(numbers) == 2
    assert {one.engine.status.state for one in replica._here.values()} == {"stopped"}


@pytest.mark.slow
def test_what_is_refused(args, monkeypatch):
    """Strangers, unknown models, bodies that are none, and jobs: each is told why."""
    monkeypatch.setenv("PROPOLIS_TOKEN", "secret")
    with serving(Replica(args)) as client:
        assert client.get("/health").status_code == 200
        assert ask(client, "a").json()["error"]["code"] == "MISSING_API_KEY"
        client.headers["Authorization"] = "Bearer secret"
        assert ask(client, "a").status_code == 200
        unknown = ask(client, "c")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
        assert "'a', 'b'" in unknown.json()["error"]["message"]
        assert client.post("/v1/jobs", json={}).json()["error"]["code"] == "jobs_not_served"
        head = {"Content-Type": "application/json"}
        for body in (b"{", b"[]", b'{"model": 1}'):
            got = client.post("/v1/chat/completions", content=body, headers=head)
            assert got.status_code == 400, got.text
        got = client.post("/v1/chat/completions", content=b"x" * (33 << 20))
        assert got.status_code == 413


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded(args, tmp_path):
    """A first model that is none ends the start; another is refused with the reason each time."""
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    args["models"]["b"] = str(tmp_path / "no.gguf")
    with serving(Replica(args)) as client:
        for _ in range(2):
            got = ask(client, "b")
            assert (got.status_code, got.headers["retry-after"]) == (503, "30")
            assert "no.gguf" in got.json()["error"]["message"]
        assert ask(client, "a").status_code == 200
    args["models"] = {"b": args["models"]["b"]}
    said = []

    async def begin():
        async def receive():
            return {"type": "lifespan.startup"}

        async def send(message):
            said.append(message)

        await Replica(args).asgi({"type": "lifespan"}, receive, send)

    asyncio.run(begin())
    assert [one["type"] for one in said] == ["lifespan.startup.failed"]
    assert "no.gguf" in said[0]["message"]


def test_pulled_models(args, tiny, tmp_path, monkeypatch):
    """Models are given by the names of pulled ones too; one that was not pulled is named."""
    monkeypatch.setenv("PROPOLIS_MODELS_DIR", str(tmp_path / "models"))
    (tmp_path / "models/some/Model-GGUF").mkdir(parents=True)
    pulled = tiny.gguf(tmp_path / "models/some/Model-GGUF/Model-Q8_0.gguf")
    args["models"] = {"a": "some/Model-GGUF:Q8_0"}
    assert Replica(args)._paths == {"a": pulled}
    args["models"] = {"a": "some/Other-GGUF"}
    with pytest.raises(ModelError, match="`propolis models pull some/Other-GGUF` gets it"):
        Replica(args)


@pytest.mark.slow
def test_unloading(args):
    """Ray ends a model by its ``__del__`` in a thread: its engine has ended when that returns."""

    async def go():
        replica = Replica(args)
        model = await replica.model("a")
        assert model is await replica.model("a")
        replica.check_health()
        await asyncio.to_thread(model.__del__)
        assert model.engine.status.state == "stopped"
        again = await replica.load("a")
        assert again is not model
        again.engine.status = Status("failed", "it broke")
        with pytest.raises(PropolisError, match="a: it broke"):
            replica.check_health()
        await again.close()

    asyncio.run(go())
