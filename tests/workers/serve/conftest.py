"""Servers of the tiny model, each on a port of its own."""

from __future__ import annotations

import importlib.util
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import uvicorn
from patience import patience
from patience import until

from propolis import Config
from propolis_workers.serve.app import application
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.image_service import ImageService
from propolis_workers.serve.service import Service


if TYPE_CHECKING:
    from collections.abc import Iterator


SD = Path(__file__).parents[2] / "data" / "sd"


@dataclass
class Running:
    """A server that runs."""

    url: str
    engine: Engine
    service: Service | ImageService
    http: httpx2.Client

    def chat(self, text="hi", **more) -> httpx2.Response:
        """Ask with defaults that give the same tokens each time."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
        return self.http.post("/v1/chat/completions", json={**body, **more})

    def now(self) -> dict:
        """What the engine said last."""
        return self.engine.status.now


@pytest.fixture(scope="session")
def hosting():
    """Runs applications on ports of their own; they end with the tests."""
    running: list[tuple[uvicorn.Server, threading.Thread, httpx2.Client]] = []

    def host(service, images=None, *, token=None, **options) -> Running:
        app = application(service, images, token=token, **options)
        settings = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx2.Client(base_url=url, headers=headers, timeout=patience(60))
        running.append((server, thread, client))
        found = service or images
        until(lambda: found.engine.status.state in ("ready", "failed"), 60)
        return Running(url, found.engine, found, client)

    yield host
    for server, _, client in running:
        client.close()
        server.should_exit = True
    for _, thread, _ in running:
        thread.join(patience(20))


@pytest.fixture(scope="session")
def serving(hosting, tiny_gguf):
    """Makes servers of the tiny model that writes."""

    def start(*, token=None, most_waiting=8, most=4, tokens=None, **options) -> Running:
        config = Config(threads=1).model_dump(mode="json")
        engine = Engine(
            {**config, "model": str(tiny_gguf)},
            {"context": 96, "most": most, "tokens": tokens},
            most_waiting=most_waiting,
        )
        return hosting(Service(tiny_gguf, engine), token=token, **options)

    return start


@pytest.fixture(scope="session")
def sd_folder(tmp_path_factory) -> Path:
    """A tiny model that draws noise of 64 by 64 pixels."""
    spec = importlib.util.spec_from_file_location("sd_runs", SD / "runs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.write_model(tmp_path_factory.mktemp("served") / "tiny-sd", "sd15")


@pytest.fixture(scope="session")
def drawing(hosting, sd_folder):
    """Makes servers of the tiny model that draws."""

    def start(*, loras=None, most=4, most_waiting=8, **options) -> Running:
        config = Config(threads=1).model_dump(mode="json")
        engine = Engine(
            {**config, "sd_model": str(sd_folder)},
            {"most": most, "dtype": "f32"},
            kind="sd",
            most_waiting=most_waiting,
        )
        return hosting(None, ImageService(sd_folder, engine, loras=loras), **options)

    return start


@pytest.fixture(scope="module")
def server(serving) -> Iterator[Running]:
    """A server that the tests of a module share."""
    return serving()
