"""Embeddings of texts, whichever API they are asked for by."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Any

from propolis_workers.serve.engine import BusyError
from propolis_workers.serve.problems import ProblemError


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Sequence

    from propolis_workers.serve.service import Service

# Seconds until somebody asks again whether there is room.
_PAUSE = 0.05


def expect_made(service: Service) -> None:
    """Refuse to make embeddings with a model that is made to write."""
    if not service.config.pooling:
        msg = f"{service.name} writes text and gives no embeddings; take a model made for them"
        raise ProblemError(400, msg, code="embeddings_not_supported", param="model")


def tokens_of(service: Service, texts: Sequence[Any]) -> list[list[int]]:
    """Of each text, with what the file begins and ends texts by; ids are taken as they are."""
    encode, most = service.prompts.tokenizer.encode, service.config.vocab_size
    found = [encode(one, add_special=True) if isinstance(one, str) else one for one in texts]
    for ids in found:
        if not ids or max(ids) >= most:
            msg = "an input is empty" if not ids else f"token {max(ids)} is not among {most}"
            raise ProblemError(400, msg, param="input")
    return found


def expect_room(service: Service, ids: Sequence[list[int]]) -> None:
    """Refuse texts that the context has no room for, by their place in the request."""
    for index, one in enumerate(ids):
        if len(one) > service.context:
            where = "input" if len(ids) == 1 else f"input.{index}"
            msg = f"{where} has {len(one)} tokens; the context has room for {service.context}: "
            msg += "give shorter texts"
            raise ProblemError(400, msg, code="context_length_exceeded", param=where)


def cut(service: Service, ids: list[int]) -> list[int]:
    """As much of a text as the context has room for, ended by what ends texts."""
    most, special = service.context, service.prompts.tokenizer.special_ids
    if len(ids) <= most:
        return ids
    kept = next((n for n, token in enumerate(reversed(ids)) if token not in special), 0)
    kept = min(kept, most)
    return ids[: most - kept] + ids[len(ids) - kept :]


async def vectors_of(
    service: Service, ids: Sequence[list[int]], until: float | None
) -> AsyncGenerator[list[float]]:
    """
    The embedding of each.

    One after the other, as they are computed: no text of one request waits twice.
    """
    for index, one in enumerate(ids):
        answer = await _begun(service, one, until, patient=index > 0)
        async with aclosing(answer) as said:
            vectors = [part["embedding"] async for part in said]
        yield vectors[-1]


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


__all__ = ["cut", "expect_made", "expect_room", "tokens_of", "vectors_of"]
