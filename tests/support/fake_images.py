"""A server that says it draws: the page's side of image jobs, without a model."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse
from patience import patience
from patience import until
from PIL import Image

from propolis_workers.serve import page
from propolis_workers.serve.gate import Gate


if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Iterator

STEPS = 4


def png(colour: str, size: int = 16) -> str:
    """A square of one colour, as base64."""
    file = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@dataclass
class FakeImages:
    """
    The server, and what the page asked of it.

    Attributes:
        url: where it is.
        info: what ``GET /info`` says.
        allowed: steps that a job may make.
        asked: the bodies of jobs.
        cancelled: names of jobs.
        fails: what a job says instead of its image, where it says something.
        breaks: whether the stream ends before the image.
        refuses: the status and body of ``POST /v1/jobs``, where it is refused.
    """

    url: str = ""
    info: dict[str, Any] = field(default_factory=lambda: dict(IMAGE))
    allowed: int = STEPS
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    fails: str = ""
    breaks: bool = False
    refuses: tuple[int, dict[str, Any]] | None = None

    def app(self) -> FastAPI:
        """What answers."""
        app = FastAPI()
        app.include_router(page.routes())
        app.add_middleware(Gate, token=None, most_bytes=1 << 20)

        @app.get("/info")
        async def info() -> dict[str, Any]:
            return self.info

        @app.post("/v1/jobs")
        async def begin(asked: dict[str, Any]) -> JSONResponse:
            if self.refuses:
                return JSONResponse(self.refuses[1], status_code=self.refuses[0])
            self.asked.append(asked)
            name = f"job-{len(self.asked)}"
            return JSONResponse({"job_id": name, "sse_url": f"/v1/jobs/{name}/stream"})

        @app.get("/v1/jobs/{name}/stream")
        async def stream(name: str) -> StreamingResponse:
            return StreamingResponse(self._events(), media_type="text/event-stream")

        @app.delete("/v1/jobs/{name}")
        async def cancel(name: str) -> dict[str, str]:
            self.cancelled.append(name)
            return {"job_id": name, "status": "cancelled"}

        return app

    async def _events(self) -> AsyncIterator[bytes]:
        for step in range(1, STEPS + 1):
            while step > self.allowed:  # noqa: ASYNC110  (another thread allows more)
                await asyncio.sleep(0.01)
            yield _event("progress", step=step, total=STEPS, percent=100 * step // STEPS)
            yield b": still here\r\n\r\n"
            yield _event("preview", image=png("grey", 8), format="png", step=step)
        if self.fails:
            yield _event("error", message=self.fails)
        elif not self.breaks:
            whole = _event("complete", image=png("red"), format="png", seed=7)
            yield whole[:100]  # pieces end anywhere
            await asyncio.sleep(0.05)
            yield whole[100:]
        if not self.breaks:
            yield b"data: [DONE]\n\n"


_SIZES = {"size": 64, "smallest": 64, "largest": 2048, "multiple_of": 8}
IMAGE = {"image": {"model": "tiny-sd", "state": "ready", **_SIZES}}


def _event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


@contextmanager
def fake_images() -> Iterator[FakeImages]:
    """A server of its own, at a port of its own."""
    made = FakeImages()
    settings = uvicorn.Config(made.app(), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    made.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield made
    server.should_exit = True
    thread.join(patience(20))


__all__ = ["IMAGE", "STEPS", "FakeImages", "fake_images", "png"]
