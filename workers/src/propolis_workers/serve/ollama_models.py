"""Ollama's API, as far as its clients ask for models and embeddings."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import aclosing
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

from propolis import __version__
from propolis.errors import PropolisError
from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (read at run time)
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (read at run time)
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.vectors import cut
from propolis_workers.serve.vectors import expect_made
from propolis_workers.serve.vectors import expect_room
from propolis_workers.serve.vectors import tokens_of
from propolis_workers.serve.vectors import vectors_of


if TYPE_CHECKING:
    from propolis_workers.serve.service import Service

Told = dict[str, Any]
_Text = Annotated[str, Field(max_length=1 << 20)]
# When a model is let go that never is, as Ollama's `keep_alive` of -1 has it: 292 years on.
_NEVER = "2318-01-01T00:00:00Z"


class Error(BaseModel):
    """What went wrong, in a text as Ollama has it."""

    error: str


class Show(Body):
    """The body of ``POST /api/show``."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    name: str = ""  # as older clients say it


class Embed(Body):
    """The body of ``POST /api/embed``."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    input: _Text | Annotated[list[_Text], Field(max_length=2048, fail_fast=True)]
    truncate: bool = True
    dimensions: int | None = None
    timeout: Seconds | None = None


class Embeddings(Body):
    """The body of ``POST /api/embeddings``, as older clients ask."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    prompt: _Text = ""
    timeout: Seconds | None = None


def routes(service: Service) -> APIRouter:
    """The routes, answered by that service."""
    router = APIRouter(responses={"default": {"model": Error}}, route_class=JsonRoute)

    @router.get("/api/tags")
    async def tags() -> Told:
        return {"models": [_described(service)]}

    @router.get("/api/ps")
    async def running() -> Told:
        status = service.engine.status
        if status.state != "ready":
            return {"models": []}
        on_card = not str(status.ready.get("device", "cpu")).startswith("cpu")
        more = {
            "expires_at": _NEVER,
            "size_vram": service.nbytes if on_card else 0,
            "context_length": service.context,
        }
        return {"models": [_described(service) | more]}

    @router.post("/api/show")
    async def show(asked: Show) -> Told:
        if not (name := asked.model or asked.name):
            msg = f"no model is named; there is {service.name!r}"
            raise ProblemError(400, msg, param="model")
        service.expect_model(name)
        described = _described(service)
        return {
            "details": described["details"],
            "modified_at": described["modified_at"],
            "template": service.prompts.template or "",
            "capabilities": _capabilities(service),
            "model_info": {
                "general.architecture": service.config.architecture,
                f"{service.config.architecture}.context_length": service.config.context_length,
                f"{service.config.architecture}.block_count": service.config.layers,
                f"{service.config.architecture}.embedding_length": service.config.width,
            },
        }

    @router.get("/api/version")
    async def version() -> Told:
        return {"version": __version__}

    @router.post("/api/embed")
    async def embed(asked: Embed, http: HttpRequest, within: Timeout = None) -> Response:
        started = time.perf_counter()
        _expect(service, asked.model)
        if asked.dimensions not in (None, 0, service.config.width):
            msg = f"dimensions is {asked.dimensions}; supported: {service.config.width}"
            raise ProblemError(400, msg, param="dimensions")
        until = service.deadlines.until(asked.timeout, within)
        # No text at all asks for the model to be loaded.
        texts = asked.input if isinstance(asked.input, list) else [asked.input] * bool(asked.input)
        ids = await service.prepared(1, until, tokens_of, service, texts)
        if asked.truncate:
            ids = [cut(service, one) for one in ids]
        expect_room(service, ids)
        vectors = await _collected(service, http, ids, until)
        if vectors is None:
            return Response(status_code=499)  # nobody reads it
        rest = {
            "model": service.name,
            "total_duration": int((time.perf_counter() - started) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, ids)),
        }
        body = f'{{"embeddings": [{", ".join(vectors)}], {json.dumps(rest)[1:]}'
        return Response(body, media_type="application/json")

    @router.post("/api/embeddings")
    async def one_embedding(
        asked: Embeddings, http: HttpRequest, within: Timeout = None
    ) -> Response:
        _expect(service, asked.model)
        until = service.deadlines.until(asked.timeout, within)
        if not asked.prompt:  # it asks for the model to be loaded
            return JSONResponse({"embedding": []})
        ids = await service.prepared(1, until, tokens_of, service, [asked.prompt])
        vectors = await _collected(service, http, [cut(service, one) for one in ids], until)
        if vectors is None:
            return Response(status_code=499)  # nobody reads it
        return Response(f'{{"embedding": {vectors[0]}}}', media_type="application/json")

    return router


def _expect(service: Service, name: str) -> None:
    service.expect_model(name)
    expect_made(service)


async def _collected(
    service: Service, http: HttpRequest, ids: list[list[int]], until: float | None
) -> list[str] | None:
    """The embeddings of texts as JSON; None where whoever asked has gone."""
    found: list[str] = []

    async def collect() -> None:
        async with aclosing(vectors_of(service, ids, until)) as vectors:
            # Here, for all at once would keep everybody waiting.
            found.extend([json.dumps(vector) async for vector in vectors])

    return found if await unless_gone(http, collect()) else None


def _capabilities(service: Service) -> list[str]:
    if service.config.pooling:
        return ["embedding"]
    return ["completion", *(["tools"] if _takes_tools(service) else [])]


def _takes_tools(service: Service) -> bool:
    try:
        return bool(service.prompts.family)
    except PropolisError:
        return False


def _rounded(parameters: int) -> str:
    """As Ollama writes it, such as "134.5M"."""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return f"{parameters / 1000:.1f}K"


def _digest(service: Service) -> str:
    """
    Names the model as it is served here; Ollama's own program shows its first twelve digits.

    Of what is known of it, not of its bytes: 40 GB of those would take minutes.
    """
    known = (service.name, service.kind, service.nbytes, service.parameters, service.quantisation)
    return hashlib.sha256(repr(known).encode()).hexdigest()


def _described(service: Service) -> Told:
    at = datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z")
    architecture = service.config.architecture
    name = service.name if ":" in service.name else f"{service.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": at,
        "size": service.nbytes,
        "digest": _digest(service),
        "details": {
            "format": service.kind,
            "family": architecture,
            "families": [architecture],
            "parameter_size": _rounded(service.parameters),
            "quantization_level": service.quantisation,
        },
    }


__all__ = ["Error", "routes"]
