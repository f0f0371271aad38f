"""The HTTP application: routes of what is served, health, and what operators look at."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Any

from fastapi import FastAPI
from fastapi import Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.responses import PlainTextResponse
from fastapi.responses import StreamingResponse

from propolis import __version__
from propolis_workers.serve import jobs
from propolis_workers.serve import mistakes
from propolis_workers.serve import ollama
from propolis_workers.serve import ollama_models
from propolis_workers.serve import openai
from propolis_workers.serve import openai_embeddings
from propolis_workers.serve import page
from propolis_workers.serve import tracing
from propolis_workers.serve.gate import Gate
from propolis_workers.serve.metrics import Metrics
from propolis_workers.serve.openai_replies import describe_events


if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Collection
    from collections.abc import Sequence

    from propolis_workers.serve.engine import Engine
    from propolis_workers.serve.heartbeat import Heartbeat
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

# FastAPI's pages would load scripts from elsewhere; the description itself is at /openapi.json.
_OFFLINE: dict[str, Any] = {"docs_url": None, "redoc_url": None}

# What the ancestor calls how an engine is, where it can be ready by itself.
_READY = {"ready": "idle", "loading": "loading", "restarting": "loading"}

# Seconds after which a stream about loading says that it is still there.
_KEEPALIVE = 10.0


class _App(FastAPI):
    """What is served, with a description that tells of streams too."""

    def openapi(self) -> dict[str, Any]:
        """The description, as OpenAPI has it."""
        return describe_events(super().openapi())


def application(
    service: Service | None,
    images: ImageService | None = None,
    *,
    token: str | None,
    most_bytes: int = 32 << 20,
    most_open: int = 2048,
    hosts: Collection[str] | None = (),
    origins: Collection[str] = (),
    heartbeats: Sequence[Heartbeat] = (),
    gated: bool = True,
    log_prompts: bool = False,
) -> FastAPI:
    """
    What a server runs.

    Args:
        service: the model that writes; None for none.
        images: the model that draws; None for none.
        token: that requests must bear; None for none.
        most_bytes: of a request's body.
        most_open: requests that are answered at once, streams among them.
        hosts: what requests may call the server, beside localhost and the addresses that mean
            it; None for anything.
        origins: of pages that may ask in a browser; ``*`` for any.
        heartbeats: that go on while the server runs.
        log_prompts: whether a line of the log has what each request asked.
        gated: who may ask is checked here, and not by who passes requests on.
    """
    engines = [one.engine for one in (service, images) if one is not None]

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for one in (service, images):
            if one is not None and (spans := tracing.watch(one)):
                one.engine.watch(spans)
        for engine in engines:
            engine.start()
        for heartbeat in heartbeats:
            heartbeat.start()
        yield
        for heartbeat in heartbeats:
            heartbeat.stop()
        await asyncio.gather(*(engine.stop() for engine in engines))

    if service is not None and images is not None:
        service.elsewhere = {images.name: "/v1/images/generations and jobs that draw"}
        images.elsewhere = dict.fromkeys(service.names - {""}, "chats, completions and jobs")
    app = _App(title="Propolis", version=__version__, lifespan=life, **_OFFLINE)
    app.state.log_prompts = log_prompts
    metrics = Metrics(service, images)
    app.include_router(jobs.routes(service, images))
    app.include_router(openai.models(service, images))
    if service is not None:
        app.include_router(openai.routes(service))
        app.include_router(openai_embeddings.routes(service))
        app.include_router(ollama.routes(service))
        app.include_router(ollama_models.routes(service))
    if images is not None:
        from propolis_workers.serve import openai_images  # noqa: PLC0415  (Pillow is not for all)

        app.include_router(openai_images.routes(images))
    app.include_router(page.routes())
    mistakes.answer(app, service, images)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        states = [engine.status.state for engine in engines]
        well = not {"failed", "stopped"}.intersection(states)
        draining = any(engine.draining for engine in engines)
        state = "draining" if well and draining else _worst(states)
        body = {"status": "healthy" if well else "unhealthy", "state": state}
        body["timestamp"] = datetime.now(UTC).isoformat()
        return JSONResponse(body, status_code=200 if well else 503)

    @app.get("/ready")
    @app.get("/v1/ready")
    async def ready() -> Response:
        states = [engine.status.state for engine in engines]
        draining = any(engine.draining for engine in engines)
        all_ready = set(states) == {"ready"} and not draining
        body: dict[str, Any] = {
            "ready": all_ready,
            "state": _READY.get(_worst(states), "error"),
            "model_loaded": set(states) == {"ready"},
            "progress_url": "/v1/loading/progress",
        }
        if all_ready and any(engine.waiting for engine in engines):
            body["state"] = "busy"
        if draining:
            body["state"] = "draining"
        errors = [engine.status.error for engine in engines if engine.status.error]
        if errors:
            body["error"] = "; ".join(errors)
        return JSONResponse(body, status_code=200 if all_ready else 503)

    @app.get("/v1/loading/progress")
    async def progress() -> StreamingResponse:
        layers = 0 if service is None else service.config.layers
        return StreamingResponse(_loading(engines, layers), media_type="text/event-stream")

    @app.get("/info")
    async def info() -> dict[str, Any]:
        told: dict[str, Any] = {"version": __version__, "implementation": "propolis"}
        if service is not None:
            told |= {"model": service.name, **_about(service.engine)}
        if images is not None:
            sizes = {"size": images.size, "smallest": images.smallest, "largest": images.largest}
            loras = await asyncio.to_thread(images.loras)
            image = {"model": images.name, **sizes, "multiple_of": images.factor, "loras": loras}
            told["image"] = {**image, **_about(images.engine)}
        return told

    @app.get("/metrics", response_class=PlainTextResponse)
    async def told() -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    if gated:

        def ending() -> bool:
            return any(engine.draining for engine in engines)

        limits: dict[str, Any] = {"most_bytes": most_bytes, "most_open": most_open, "hosts": hosts}
        limits |= {"ending": ending, "responded": metrics.responded}
        app.add_middleware(Gate, token=token, origins=origins, **limits)
        if origins:  # before the gate: a browser asks for leave without the token
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )
    return app


def _worst(states: Sequence[str]) -> str:
    """Of several engines, how the one is that is least ready."""
    return min(states, key=("failed", "stopped", "restarting", "loading", "ready").index)


def _about(engine: Engine) -> dict[str, Any]:
    status = engine.status
    return {
        "state": status.state,
        "restarts": status.restarts,
        "requests": engine.waiting,
        **status.ready,
        "now": status.now,
    }


async def _loading(engines: Sequence[Engine], layers: int) -> AsyncIterator[bytes]:
    """
    Server-sent events until all models are loaded, or one cannot be.

    Weights are counted in bytes; of the layers that a hive asks for, the same share is there.
    """
    while True:
        all_of_them = [engine.status for engine in engines]
        state = _worst([status.state for status in all_of_them])
        if state == "ready":
            yield _event({"stage": "ready"})
            return
        if any(engine.draining for engine in engines):
            yield _event({"stage": "error", "message": "the server is about to end"})
            return
        if state in ("failed", "stopped"):
            errors = [status.error for status in all_of_them if status.error]
            yield _event({"stage": "error", "message": "; ".join(errors)})
            return
        done, total = (sum(getattr(s, name) for s in all_of_them) for name in ("done", "all"))
        yield _event(
            {
                "stage": "loading_to_vram",
                "layers_loaded": layers * done // total if total else 0,
                "layers_total": layers,
                "vram_mb": done // 10**6,
                "bytes_loaded": done,
                "bytes_total": total,
            }
        )
        late = [engine for engine in engines if engine.status.state != "ready"]
        waits = [asyncio.ensure_future(engine.changed(_KEEPALIVE)) for engine in late]
        _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in left:
            wait.cancel()


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


__all__ = ["application"]
