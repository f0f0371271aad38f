"""
What the process that serves and the one that computes say to each other: lines of JSON.

To the engine::

    {"do": "load", "kind": "llm" or "sd", "config": {...}, "options": {...}}
    {"do": "add", "key": 7, "prompt": [...], "params": {...}, "max_tokens": 9, ...}
    {"do": "add", "key": 8, "embed": [...], ...}
    {"do": "cancel", "key": 7}
    {"do": "end", "key": 7}    # the same, and how it went is told as the end of others

From it::

    {"is": "loading", "done": 10, "all": 98}
    {"is": "warming"}
    {"is": "ready", "device": "cpu", "context": 8192, ...}
    {"is": "step", "drawn": [...], "state": {...}}
    {"is": "failed", "error": "...", "kind": "ModelError"}
    {"is": "lost", "error": "..."}
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_workers.llm.batch.engine import Drawn
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.stopping import Ending


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.llm.answer import Finish
    from propolis_workers.llm.batch.scores import Logprobs


_LEAST: Final = -9999.0


def line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def added(request: Request) -> dict[str, Any]:
    """The message that asks for an answer; whoever sends it adds a key."""
    return {
        "prompt": request.prompt,
        "params": asdict(request.params),
        "max_tokens": request.max_tokens,
        "stops": list(request.stops),
        "logprobs": request.logprobs,
        "prompt_logprobs": request.prompt_logprobs,
        "grammar": request.grammar,
        "shown": list(request.shown),
        "ending": asdict(request.ending),
    }


def embedded(ids: list[int]) -> dict[str, Any]:
    """The message that asks for the embedding of a text."""
    return {"embed": ids, "prompt": ids, "max_tokens": 0}


def vector(key: int, values: list[float], seconds: float) -> dict[str, Any]:
    """An embedding as it is told: the only thing, and the last."""
    finish = {"stop_reason": "DONE", "tokens": 0, "prefill_seconds": seconds}
    return {"key": key, "embedding": values, "finish": finish}


def request(message: Mapping[str, Any]) -> Request:
    """The request of a message made by :func:`added`."""
    params = dict(message["params"])
    params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
    return Request(
        prompt=message["prompt"],
        params=SamplingParams(**params),
        max_tokens=message["max_tokens"],
        stops=tuple(message["stops"]),
        logprobs=message["logprobs"],
        prompt_logprobs=message["prompt_logprobs"],
        grammar=message["grammar"],
        shown=tuple(message["shown"]),
        ending=Ending(**{**message["ending"], "ids": tuple(message["ending"]["ids"])}),
    )


def drawn(one: Drawn) -> dict[str, Any]:
    """A token as it is told, or what is known of a prompt; what is not there is left out."""
    if one.prompt is not None:
        return {"key": one.key, "text": "", "prompt": [_likely(known) for known in one.prompt]}
    told: dict[str, Any] = {"key": one.key, "token": one.token, "text": one.text}
    if one.logprobs is not None:
        told["logprobs"] = _likely(one.logprobs)
    if one.finish is not None:
        told["finish"] = _finished(one.finish)
    if one.error is not None:
        told |= {"error": str(one.error), "kind": type(one.error).__name__}
    return told


def ended(key: int, finish: Finish) -> dict[str, Any]:
    """The end of an answer that whoever asked had enough of."""
    return {"key": key, "text": "", "finish": _finished(finish) | {"stop_reason": "STOP_SEQUENCE"}}


def _finished(how: Finish) -> dict[str, Any]:
    finish = asdict(how)
    tokens = len(finish.pop("ids"))
    return {**finish, "tokens": tokens, "text": None}


def _likely(known: Logprobs) -> dict[str, Any]:
    """As JSON has it, which has no infinity: -9999 in its place, as vLLM tells it."""
    top = [(token, max(value, _LEAST)) for token, value in known.top]
    return {"own": max(known.own, _LEAST), "top": top}


def failed(key: int, error: Exception) -> dict[str, Any]:
    """The end of a request that cannot be answered."""
    return {"key": key, "error": str(error), "kind": type(error).__name__}


__all__ = ["added", "drawn", "embedded", "ended", "failed", "line", "request", "vector"]
