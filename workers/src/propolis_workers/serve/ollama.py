"""Ollama's API, as far as its clients ask for text: generate and chat."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict
from pydantic import Field

from propolis.errors import PropolisError
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.schemas import listed_only
from propolis_workers.serve.answering import seed_of
from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.bodies import TopP
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (read at run time)
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (read at run time)
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.ollama_models import Error
from propolis_workers.serve.ollama_tools import Spoken
from propolis_workers.serve.ollama_tools import Tool
from propolis_workers.serve.ollama_tools import message
from propolis_workers.serve.ollama_tools import spoken
from propolis_workers.serve.openai_shapes import reason
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of
from propolis_workers.serve.tool_use import MOST_TOOLS
from propolis_workers.serve.tool_use import ToolUse
from propolis_workers.serve.tool_use import tool_use


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import AsyncIterator
    from collections.abc import Callable

    from propolis_workers.serve.service import Service

Told = dict[str, Any]
_Text = Annotated[str, Field(max_length=1 << 20)]
_Stop = Annotated[str, Field(min_length=1, max_length=1024)]
_Stops = Annotated[list[_Stop], Field(max_length=64, fail_fast=True)]


class Options(Body):
    """How tokens are drawn; Ollama's own defaults.  Others, about memory, mean nothing here."""

    model_config = ConfigDict(extra="ignore")

    num_predict: Annotated[int, Field(ge=-2)] = -1
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.8
    top_k: Annotated[int, Field(ge=-1)] = 40
    top_p: TopP = 0.9
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: int | None = None
    stop: _Stop | _Stops | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] = 1.1
    repeat_last_n: Annotated[int, Field(ge=-1)] = 64
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    mirostat: int = 0


class _Asked(Body):
    model_config = ConfigDict(extra="ignore")

    model: str = ""
    stream: Annotated[bool, Field(strict=True)] = True
    options: Options | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    # What would change the answer and is not served is refused, not ignored.
    images: list[Any] | None = None
    suffix: str | None = None
    template: str | None = None
    think: Any = None
    context: list[int] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    timeout: Seconds | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """What the chat template is told of thinking, which some models do unless asked not to."""
        return {"enable_thinking": False} if self.think is False else {}

    def expect_served(self) -> None:
        """Refuse what is not served, by name."""
        names = ("images", "suffix", "template", "think", "context", "logprobs", "top_logprobs")
        for name in names:
            if getattr(self, name):
                remedy = "; supported: false" if name == "think" else ": leave it out"
                raise ProblemError(400, f"{name} is not supported here{remedy}", param=name)
        if self.options and self.options.mirostat:
            msg = "options.mirostat is not supported here: leave it out; there are top_k, top_p "
            msg += "and min_p"
            raise ProblemError(400, msg, param="options.mirostat")


class Generate(_Asked):
    """The body of ``POST /api/generate``."""

    prompt: _Text = ""
    system: _Text | None = None
    raw: bool = False


class Chat(_Asked):
    """The body of ``POST /api/chat``."""

    messages: list[Spoken] = Field([], max_length=4096, fail_fast=True)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None


# A stream is of lines of JSON.
_LINES: dict[int | str, Told] = {200: {"content": {"application/x-ndjson": {}}}}


def routes(service: Service) -> APIRouter:
    """The routes, answered by that service."""
    router = APIRouter(responses={"default": {"model": Error}}, route_class=JsonRoute)

    @router.post("/api/generate", responses=_LINES)
    async def generate(asked: Generate, http: HttpRequest, within: Timeout = None) -> Response:
        started = time.perf_counter()
        until = service.deadlines.until(asked.timeout, within)
        _expect(service, asked)
        if not asked.prompt:
            return JSONResponse(_last(service, {"response": ""}, {}, "load"))
        request = await service.prepared(1, until, _generated, service, asked)
        answer = service.answer(request, until)
        return await _respond(
            service, http, asked, request, answer, lambda one: {"response": one["text"]}, started
        )

    @router.post("/api/chat", responses=_LINES)
    async def chat(asked: Chat, http: HttpRequest, within: Timeout = None) -> Response:
        started = time.perf_counter()
        until = service.deadlines.until(asked.timeout, within)
        _expect(service, asked)
        if not asked.messages:
            return JSONResponse(_last(service, message({"text": ""}), {}, "load"))
        if any(one.images for one in asked.messages):
            raise ProblemError(400, "images are not supported here", param="images")
        request, tools = await service.prepared(1, until, _chatted, service, asked)
        answer = service.answer(request, until, tools)
        return await _respond(service, http, asked, request, answer, message, started)

    return router


async def _respond(
    service: Service,
    http: HttpRequest,
    asked: Generate | Chat,
    request: Request,
    answer: AsyncGenerator[Told],
    shaped: Callable[[Told], Told],
    started: float,
) -> Response:
    async def pieces() -> AsyncIterator[Told]:
        async with aclosing(answer) as told:
            async for one in told:
                if asked.stream and (one["text"] or one.get("calls")):
                    yield _head(service) | shaped(one) | {"done": False}
                elif not asked.stream:
                    kept["text"] += one["text"]
                    kept["calls"] += one.get("calls", [])
                if "finish" in one:
                    spent = time.perf_counter() - started
                    counts = _counts(one["finish"], len(request.prompt), spent)
                    end = "length" if reason(one["finish"]) == "length" else "stop"
                    yield _last(service, shaped(kept), counts, end)

    kept: Told = {"text": "", "calls": []}
    if asked.stream:
        return StreamingResponse(_lines(pieces()), media_type="application/x-ndjson")
    whole: list[Told] = []

    async def collect() -> None:
        whole.extend([one async for one in pieces()])

    if not await unless_gone(http, collect()):
        return Response(status_code=499)  # nobody reads it
    return JSONResponse(whole[-1])


async def _lines(pieces: AsyncIterator[Told]) -> AsyncIterator[bytes]:
    """Lines of JSON; the last says what went wrong, where something did."""
    try:
        async for one in pieces:
            yield json.dumps(one).encode() + b"\n"
    except PropolisError as exc:
        yield json.dumps({"error": str(problem_of(exc))}).encode() + b"\n"


def _grammar(asked: _Asked) -> str | None:
    if not asked.format:
        return None
    return json_grammar(None if isinstance(asked.format, str) else listed_only(asked.format))


def _generated(service: Service, asked: Generate) -> Request:
    """What is asked of the engine for a prompt."""
    most = service.context
    spoken = [{"role": "user", "content": asked.prompt}]
    if asked.system:
        spoken.insert(0, {"role": "system", "content": asked.system})
    with service.remedied():
        if asked.raw:
            ids = service.prompts.text(asked.prompt, most=most)
        else:
            ids = service.prompts.chat(spoken, variables=asked.variables, most=most)
    return _request(service, asked.options or Options(), ids, _grammar(asked))


def _chatted(service: Service, asked: Chat) -> tuple[Request, ToolUse | None]:
    """What is asked of the engine for a conversation, and its tools."""
    told, options, most = spoken(asked.messages), asked.options or Options(), service.context
    # Ollama goes on with what the assistant said last.
    last = asked.messages[-1]
    begun = last.role == "assistant" and not last.tool_calls
    some = len(told) > 1 or bool((last.content or "").strip())
    given: Told = {"variables": asked.variables, "continued": begun and some, "most": most}
    if not asked.tools:
        with service.remedied():
            ids = service.prompts.chat(told, **given)
        return _request(service, options, ids, _grammar(asked)), None
    if asked.format:
        msg = "an answer follows format or calls tools: give one of them"
        raise ProblemError(400, msg, param="format")
    tools = tool_use(service.prompts, [tool.function.checked() for tool in asked.tools])
    with service.remedied():
        ids = service.prompts.chat(told, tools=tools.told, **given)
    return _request(service, options, ids, None, tools.shown), tools


def _request(
    service: Service,
    options: Options,
    ids: list[int],
    grammar: str | None,
    shown: tuple[int, ...] = (),
) -> Request:
    service.expect_prompt(ids)
    room = service.context - len(ids)
    return Request(
        prompt=ids,
        params=SamplingParams(
            temperature=options.temperature,
            top_k=max(options.top_k, 0),
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repeat_penalty,
            repeat_last_n=options.repeat_last_n,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            seed=seed_of(options.seed),
        ),
        grammar=grammar,
        shown=shown,
        max_tokens=room if options.num_predict < 1 else min(options.num_predict, room),
        stops=(options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ()),
    )


def _expect(service: Service, asked: _Asked) -> None:
    asked.expect_served()
    service.expect_model(asked.model)


def _head(service: Service) -> Told:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": service.name, "created_at": now}


def _last(service: Service, shape: Told, counts: Told, reason: str) -> Told:
    return _head(service) | shape | {"done": True, "done_reason": reason} | counts


def _counts(finish: Told, prompt: int, spent: float) -> Told:
    """Tokens, and nanoseconds."""
    return {
        "total_duration": int(spent * 1e9),
        "load_duration": 0,
        "prompt_eval_count": prompt,
        "prompt_eval_duration": int(finish["prefill_seconds"] * 1e9),
        "eval_count": finish["tokens"],
        "eval_duration": int(finish["decode_seconds"] * 1e9),
    }


__all__ = ["routes"]
