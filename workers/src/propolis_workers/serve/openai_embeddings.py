"""OpenAI's embeddings, by models that are made for them."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Literal

import numpy as np
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import ConfigDict
from pydantic import Field

from propolis_workers.serve import openai_replies as replies
from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (pydantic reads it)
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (FastAPI reads it)
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.openai_types import Inputs
from propolis_workers.serve.openai_types import listed
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.vectors import expect_made
from propolis_workers.serve.vectors import expect_room
from propolis_workers.serve.vectors import tokens_of
from propolis_workers.serve.vectors import vectors_of


if TYPE_CHECKING:
    from propolis_workers.serve.service import Service


class EmbeddingRequest(Body):
    """The body of ``POST /v1/embeddings``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Inputs
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    timeout: Seconds | None = None


def routes(service: Service) -> APIRouter:
    """The route, answered by that service."""
    router = APIRouter(responses={"default": {"model": replies.Error}}, route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=replies.Embeddings)
    async def embeddings(
        asked: EmbeddingRequest, http: HttpRequest, within: Timeout = None
    ) -> Response:
        until = service.deadlines.until(asked.timeout, within)
        service.expect_model(asked.model)
        expect_made(service)
        width = service.config.width
        if asked.dimensions not in (None, width):
            msg = f"dimensions is {asked.dimensions}; supported: the model's, {width}"
            raise ProblemError(400, msg, param="dimensions")
        texts = listed(asked.input)
        # However many there are, they take the room of one.
        ids = await service.prepared(1, until, tokens_of, service, texts)
        expect_room(service, ids)
        told: list[str] = []

        async def collect() -> None:
            async with aclosing(vectors_of(service, ids, until)) as vectors:
                async for vector in vectors:
                    encoded = _encoded(vector, asked.encoding_format)
                    item = {"object": "embedding", "index": len(told), "embedding": encoded}
                    # Here, for all at once would keep everybody waiting.
                    told.append(json.dumps(item))

        if not await unless_gone(http, collect()):
            return Response(status_code=499)  # nobody reads it
        count = sum(map(len, ids))
        usage = {"prompt_tokens": count, "total_tokens": count}
        rest = json.dumps({"object": "list", "model": service.name, "usage": usage})
        body = f'{{"data": [{", ".join(told)}], {rest[1:]}'
        return Response(body, media_type="application/json")

    return router


def _encoded(vector: list[float], how: str) -> list[float] | str:
    if how == "float":
        return vector
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


__all__ = ["routes"]
