"""Servers of the tiny model, each on a port of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import aclosing
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import uvicorn
from browser import Browser
from browser import Page
from browser import missing
from fake_images import FakeImages
from fake_images import fake_images
from fakes import site
from patience import patience
from patience import until

from propolis import Config
from propolis_workers.serve.app import application
from propolis_workers.serve.engine import AnswerError
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.heartbeat import Heartbeat
from propolis_workers.serve.heartbeat import Worker
from propolis_workers.serve.image_service import ImageService
from propolis_workers.serve.protocol import PatientProtocol
from propolis_workers.serve.service import Service


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["site"]

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

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The engine does nothing meanwhile."""
        os.killpg(self.engine._process.pid, signal.SIGSTOP)
        yield
        os.killpg(self.engine._process.pid, signal.SIGCONT)

    def now(self) -> dict:
        """What the engine said last."""
        return self.engine.status.now


@pytest.fixture(scope="session")
def hosting():
    """Runs applications on ports of their own; they end with the tests."""
    running: list[tuple[uvicorn.Server, threading.Thread, httpx2.Client]] = []

    def host(service, images=None, *, token=None, hive=None, **options) -> Running:
        if hive is not None:
            worker = Worker("w", service.name, 0, "cpu")
            options["heartbeats"] = [Heartbeat(hive, worker, service.engine, every=0.3)]
        app = application(service, images, token=token, **options)
        settings = uvicorn.Config(
            app, port=0, log_level="warning", timeout_graceful_shutdown=1, http=PatientProtocol
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx2.Client(base_url=url, headers=headers, timeout=patience(300))
        running.append((server, thread, client))
        found = service or images
        until(lambda: found.engine.status.state in ("ready", "failed"), 60)
        if found.engine.status.state == "failed":  # the log says so once its process has ended:
            until(found.engine._life.done)  # in this test, not in what another one captures
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

    def start(
        *,
        model=tiny_gguf,
        context=96,
        token=None,
        most_waiting=8,
        most=4,
        tokens=None,
        deadline=None,
        template=None,
        stalls=600.0,
        **options,
    ) -> Running:
        config = Config(threads=1).model_dump(mode="json")
        engine = Engine(
            {**config, "model": str(model)},
            {"context": context, "most": most, "tokens": tokens},
            most_waiting=most_waiting,
            stalls=stalls,
        )
        service = Service(model, engine, deadline=deadline, template=template)
        return hosting(service, token=token, **options)

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

    def start(*, loras=None, most=4, most_waiting=8, deadline=None, **options) -> Running:
        config = Config(threads=1).model_dump(mode="json")
        engine = Engine(
            {**config, "sd_model": str(sd_folder)},
            {"most": most, "dtype": "f32"},
            kind="sd",
            most_waiting=most_waiting,
        )
        return hosting(
            None, ImageService(sd_folder, engine, loras=loras, deadline=deadline), **options
        )

    return start


class Said:
    """An answer with given texts, which can be ended."""

    def __init__(self, tell) -> None:
        self.ended = False
        self._told = tell(self)
        self.aclose = self._told.aclose

    def __aiter__(self):
        return self

    def __anext__(self):
        return anext(self._told)

    def end(self) -> None:
        """The next is the last."""
        self.ended = True


@pytest.fixture
def said(monkeypatch):
    """Makes a server answer with given texts, whatever is asked: what comes of it can be told."""

    def script(server: Running, *texts: str, reason="EOS", fails: str | None = None) -> None:
        count = itertools.count()

        def answer(request, until=None):
            return Said(tell)

        async def tell(said):
            number = next(count)
            for place, text in enumerate(texts):
                one = {"token": 65, "text": text}
                if fails is not None and number:
                    raise AnswerError(fails, "ModelError")
                if place == len(texts) - 1 or said.ended:
                    ids = {"tokens": place + 1, "cached_tokens": 0}
                    spent = {"prefill_seconds": 0.0, "decode_seconds": 0.0}
                    one["finish"] = {"stop_reason": reason, "stop_string": None, **ids, **spent}
                yield one
                if "finish" in one:
                    break
                await asyncio.sleep(0)

        monkeypatch.setattr(server.engine, "answer", answer)

    return script


@pytest.fixture(scope="module")
def server(serving) -> Iterator[Running]:
    """A server that the tests of a module share."""
    return serving()


@pytest.fixture
def rendered(server, monkeypatch):
    """The texts of the prompts that requests come to."""
    found = []
    encode = server.service.prompts.tokenizer.encode

    def seen(text, **options):
        found.append(text)
        return encode(text, **options)

    monkeypatch.setattr(server.service.prompts.tokenizer, "encode", seen)
    return found


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    """A browser; where there is none the tests are skipped, or fail where it must be there."""
    if missing():
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail(f"PROPOLIS_REQUIRE_NATIVE is set and {missing()}")
        pytest.skip(missing())
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()


@pytest.fixture
def visit(chromium):
    """Opens the page of a server; nothing may have gone elsewhere, or complained, at the end."""
    opened = []

    def opens(url: str, *, fresh: bool = True) -> Page:
        page = Page(chromium, url)
        if fresh:
            chromium.get("about:blank")
            stored = {"origin": url, "storageTypes": "all"}
            chromium.execute_cdp_cmd("Storage.clearDataForOrigin", stored)
        page.open()
        opened.append(page)
        return page

    chromium.requested()
    chromium.complaints()
    yield opens
    chromium.colours("")
    chromium.emulate("clearDeviceMetricsOverride")
    chromium.get("about:blank")
    own = (
        "about:",
        "data:",
        *(prefix for page in opened for prefix in (page.url, f"blob:{page.url}")),
    )
    requested = chromium.requested()
    assert requested
    assert not [url for url in requested if not url.startswith(own)]
    assert chromium.complaints() == []


@pytest.fixture
def page(visit, server) -> Page:
    """The page of the tiny model, whose answers are of eight tokens, the same each time."""
    opened = visit(server.url)
    opened.set("sampling-form", temperature=0, max_tokens=8)
    return opened


@pytest.fixture
def served() -> Iterator[FakeImages]:
    """A server that only says that it draws, as the test wants it to."""
    with fake_images() as made:
        yield made


@pytest.fixture
def paced(server, monkeypatch):
    """
    Lets answers come token by token, as the test allows.

    ``paced.allowed`` counts tokens; ``paced.error`` is raised after them where it is given.
    """

    class Pace:
        allowed = 0
        error: Exception | None = None

    pace, real = Pace(), server.service.answer

    async def answer(request, *until):
        async with aclosing(real(request, *until)) as told:
            number = 0
            async for one in told:
                while number >= pace.allowed:
                    if pace.error is not None:
                        raise pace.error
                    await asyncio.sleep(0.01)
                number += 1
                yield one

    monkeypatch.setattr(server.service, "answer", answer)
    yield pace
    pace.allowed = 1 << 20


@dataclass
class Program:
    """``propolis serve`` in a process of its own."""

    process: subprocess.Popen
    log: Path
    http: httpx2.Client

    def engine(self) -> int:
        """The number of the process that computes; 0 where there is none yet."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        for children in tasks.glob("*/children"):
            for child in children.read_text().split():
                # Before it has its name it keeps whoever started it from going on.
                if b"serve.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return 0

    @contextmanager
    def frozen(self):
        """The engine does nothing meanwhile."""
        engine = self.engine()
        os.kill(engine, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)

    def state(self) -> str:
        """What /v1/ready says."""
        return self.http.get("/v1/ready").json()["state"]

    def code(self) -> int:
        """The exit code, once it has one; no error of Python's was printed."""
        code = self.process.wait(patience(30))
        assert "Traceback" not in self.log.read_text()
        return code


@pytest.fixture
def program(tiny_gguf, tmp_path):
    """Starts servers; they end with the test."""
    started = []

    def start(*options, ready=True, **environ) -> Program:
        log = tmp_path / f"{len(started)}.log"
        command = [sys.executable, "-m", "propolis", "serve", "-m", str(tiny_gguf), "--port", "0"]
        command += ["--context", "96", "--threads", "1", *options]
        with log.open("w") as err:
            env = {**os.environ, **environ}
            process = subprocess.Popen(command, stderr=err, stdout=err, env=env)
        said = re.compile(r"listening at (http://\S+);")
        client = httpx2.Client(timeout=patience(30))
        one = Program(process, log, client)
        started.append(one)
        until(lambda: said.search(log.read_text()) or process.poll() is not None, 60)
        url = said.search(log.read_text())
        assert url, log.read_text()
        client.base_url = url[1]
        if ready:
            until(lambda: client.get("/health").json()["state"] == "ready", 60)
        return one

    yield start
    for one in started:
        one.http.close()
        with suppress(ProcessLookupError):
            os.kill(one.engine() or one.process.pid, signal.SIGKILL)
        one.process.kill()
        one.process.wait()
