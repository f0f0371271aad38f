"""OpenAI's embeddings, by models that are made for them."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
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
from propolis_workers.serve.engine import BusyError
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.openai_types import Inputs
from propolis_workers.serve.openai_types import listed
from propolis_workers.serve.problems import ProblemError


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from propolis_workers.serve.service import Service

# Seconds until somebody asks again whether there is room.
_PAUSE = 0.05


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
        config = service.config
        if not config.pooling:
            msg = f"{service.name} writes text and gives no embeddings; take a model made for them"
            raise ProblemError(400, msg, code="embeddings_not_supported", param="model")
        if asked.dimensions not in (None, config.width):
            msg = f"dimensions is {asked.dimensions}; supported: the model's, {config.width}"
            raise ProblemError(400, msg, param="dimensions")
        texts = listed(asked.input)
        # One after the other, as they are computed: no text of one request waits twice, and
        # however many there are, they take the room of one.
        ids = await service.prepared(1, until, _tokens, service, texts)
        told: list[str] = []

        async def collect() -> None:
            for index, one in enumerate(ids):
                answer = await _begun(service, one, until, patient=index > 0)
                async with aclosing(answer) as said:
                    vectors = [part["embedding"] async for part in said]
                encoded = _encoded(vectors[-1], asked.encoding_format)
                item = {"object": "embedding", "index": index, "embedding": encoded}
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


async def _begun(
    service: Service, ids: list[int], until: float | None, *, patient: bool
) -> AsyncGenerator[dict[str, Any]]:
    """The embedding on its way; the patient wait for room: what they have would be lost."""
    while True:
        try:
            return service.embedding(ids, until)
        except BusyError:
            if not patient or (until and asyncio.get_running_loop().time() > until):
                raise
            await asyncio.sleep(_PAUSE)


def _tokens(service: Service, texts: list[Any]) -> list[list[int]]:
    """Of each text, with what the file begins and ends texts by; ids are taken as they are."""
    encode, most = service.prompts.tokenizer.encode, service.config.vocab_size
    found = [encode(one, add_special=True) if isinstance(one, str) else one for one in texts]
    for ids in found:
        if not ids or max(ids) >= most:
            msg = "an input is empty" if not ids else f"token {max(ids)} is not among {most}"
            raise ProblemError(400, msg, param="input")
    return found


def _encoded(vector: list[float], how: str) -> list[float] | str:
    if how == "float":
        return vector
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


__all__ = ["routes"]
