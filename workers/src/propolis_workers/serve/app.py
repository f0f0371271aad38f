"""The HTTP application: routes of what is served, health, and what operators look at."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from datetime import UTC
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.responses import PlainTextResponse
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from propolis import __version__
from propolis.errors import PropolisError
from propolis_workers.serve import jobs
from propolis_workers.serve import ollama
from propolis_workers.serve import openai
from propolis_workers.serve import openai_embeddings
from propolis_workers.serve import page
from propolis_workers.serve import tracing
from propolis_workers.serve.gate import Gate
from propolis_workers.serve.metrics import Metrics
from propolis_workers.serve.openai_replies import describe_events
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of
from propolis_workers.serve.problems import wrong_field


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

# What stands before the names of fields where the body is one of several kinds.
_NOT_FIELDS = ("body", *jobs.OPERATIONS)
_TYPE = re.compile(r"\[|^constrained-|^[A-Z][A-Za-z]*$")

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

    app = _App(title="Propolis", version=__version__, lifespan=life, **_OFFLINE)
    app.state.log_prompts = log_prompts
    metrics = Metrics(service, images)
    app.include_router(jobs.routes(service, images))
    app.include_router(openai.models(service, images))
    if service is not None:
        app.include_router(openai.routes(service))
        app.include_router(openai_embeddings.routes(service))
        app.include_router(ollama.routes(service))
    if images is not None:
        from propolis_workers.serve import openai_images  # noqa: PLC0415  (Pillow is not for all)

        app.include_router(openai_images.routes(images))
    app.include_router(page.routes())
    app.add_exception_handler(PropolisError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)

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
            "model_loaded": all_ready,
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
        app.add_middleware(Gate, token=token, ending=ending, **limits)
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


async def _ours(http: HttpRequest, exc: Exception) -> Response:
    problem = problem_of(exc) if isinstance(exc, PropolisError) else ProblemError(500, str(exc))
    body = problem.body_at(http.url.path)
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)


async def _unknown(http: HttpRequest, exc: Exception) -> Response:
    """No such route, another method, or a body that cannot be read."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    path = http.url.path[:200]
    if status == HTTPStatus.NOT_FOUND:
        msg = f"there is no {path} here; /openapi.json says what there is"
        problem = ProblemError(status, msg, code="not_found")
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        msg = f"{path} is not for {http.method}; supported: {headers.get('Allow', 'another')}"
        problem = ProblemError(status, msg, code="method_not_allowed")
    else:
        problem = ProblemError(status, str(exc.detail) if isinstance(exc, HTTPException) else "")
    return JSONResponse(problem.body_at(path), status_code=status, headers=headers)


async def _invalid(http: HttpRequest, exc: Exception) -> Response:
    """What is wrong with a body, field by field; in the ancestor's words too."""
    found = exc.errors() if isinstance(exc, RequestValidationError) else []
    errors = [
        wrong_field(
            _field(one),
            one["type"],
            one["msg"],
            None if one["type"] == "missing" else one.get("input"),
        )
        for one in found[:20]
    ]
    first = errors[0] if errors else {"field": "", "message": "the body is not valid"}
    # Of a field that may be several things, what was nearest to being right.
    within = [e for e in errors if e["field"].startswith(f"{first['field']}.")]
    first = max([first, *within], key=lambda e: e["field"].count("."))
    if found and found[0]["type"] == "json_invalid":
        said = found[0].get("ctx", {}).get("error", "it ends too early")
        first = {"field": "", "message": f"the body is not JSON: {said}, at {found[0]['loc'][-1]}"}
    message = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    kind = http.headers.get("content-type", "none").partition(";")[0][:100]
    if not first["field"] and not kind.endswith("json"):
        message = f"the body is of the type {kind}; send JSON, with Content-Type: application/json"
    problem = ProblemError(400, message, param=first["field"] or None)
    problem.errors = errors
    return JSONResponse(problem.body_at(http.url.path), status_code=400)


def _field(wrong: dict[str, Any]) -> str:
    """The name of a field, with dots; pydantic's names of types beside it left out."""
    if wrong["type"] == "json_invalid":
        return ""
    parts = [part for part in wrong["loc"] if part not in _NOT_FIELDS]
    own = parts[-1:] if wrong["type"] == "extra_forbidden" else []  # whoever sent it named it
    between = parts[: len(parts) - len(own)]
    named = [str(part) for part in between if not _TYPE.search(str(part))]
    return ".".join([*named, *map(str, own)])


__all__ = ["application"]
