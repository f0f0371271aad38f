"""The HTTP application: routes of what is served, health, and what operators look at."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse

from propolis import __version__
from propolis.errors import PropolisError
from propolis_workers.serve import jobs
from propolis_workers.serve import ollama
from propolis_workers.serve import openai
from propolis_workers.serve.gate import Gate
from propolis_workers.serve.metrics import Metrics
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of


if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from propolis_workers.serve.service import Service

# FastAPI's pages would load scripts from elsewhere; the description itself is at /openapi.json.
_OFFLINE: dict[str, Any] = {"docs_url": None, "redoc_url": None}

# Seconds after which a stream about loading says that it is still there.
_KEEPALIVE = 10.0


def application(service: Service, *, token: str | None, most_bytes: int = 16 << 20) -> FastAPI:
    """
    What a server runs.

    Args:
        service: the model.
        token: that requests must bear; None for none.
        most_bytes: of a request's body.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await service.engine.stop()

    app = FastAPI(title="Propolis", version=__version__, lifespan=life, **_OFFLINE)
    metrics = Metrics(service)
    for api in (openai, ollama, jobs):
        app.include_router(api.routes(service))
    app.add_exception_handler(PropolisError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)

    @app.get("/health")
    async def health() -> Response:
        state = service.engine.status.state
        well = state not in ("failed", "stopped")
        body = {"status": "healthy" if well else "unhealthy", "state": state}
        return JSONResponse(body, status_code=200 if well else 503)

    @app.get("/v1/ready")
    async def ready() -> Response:
        status = service.engine.status
        body: dict[str, Any] = {
            "ready": status.state == "ready",
            "state": {"ready": "idle", "loading": "loading"}.get(status.state, "error"),
            "model_loaded": status.state == "ready",
            "progress_url": "/v1/loading/progress",
        }
        if status.state == "ready" and service.engine.waiting:
            body["state"] = "busy"
        if status.error:
            body["error"] = status.error
        return JSONResponse(body, status_code=200 if body["ready"] else 503)

    @app.get("/v1/loading/progress")
    async def progress() -> StreamingResponse:
        return StreamingResponse(_loading(service), media_type="text/event-stream")

    @app.get("/info")
    async def info() -> dict[str, Any]:
        status = service.engine.status
        return {
            "model": service.name,
            "version": __version__,
            "implementation": "propolis",
            "state": status.state,
            "restarts": status.restarts,
            "requests": service.engine.waiting,
            **status.ready,
            "now": status.now,
        }

    @app.get("/metrics")
    async def told() -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    app.add_middleware(Gate, token=token, most_bytes=most_bytes)
    return app


async def _loading(service: Service) -> AsyncIterator[bytes]:
    """Server-sent events until the model is loaded, or cannot be."""
    while True:
        status = service.engine.status
        if status.state == "ready":
            yield _event({"stage": "ready"})
            return
        if status.state in ("failed", "stopped"):
            yield _event({"stage": "error", "message": status.error})
            return
        yield _event({"stage": "loading", "bytes_loaded": status.done, "bytes_total": status.all})
        await service.engine.changed(_KEEPALIVE)


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


async def _ours(_: HttpRequest, exc: Exception) -> Response:
    problem = problem_of(exc) if isinstance(exc, PropolisError) else ProblemError(500, str(exc))
    return JSONResponse(problem.body(), status_code=problem.status, headers=problem.headers)


async def _invalid(_: HttpRequest, exc: Exception) -> Response:
    """What is wrong with a body, field by field; in the ancestor's words too."""
    found = exc.errors() if isinstance(exc, RequestValidationError) else []
    errors = [
        {
            "field": ".".join(str(part) for part in one["loc"] if part != "body"),
            "constraint": one["type"],
            "message": one["msg"],
        }
        for one in found[:20]
    ]
    first = errors[0] if errors else {"field": "", "message": "the body is not valid"}
    message = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    problem = ProblemError(400, message, param=first["field"] or None)
    return JSONResponse({**problem.body(), "errors": errors}, status_code=400)


__all__ = ["application"]
