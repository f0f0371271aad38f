"""OpenAI's API: chat completions, completions and models."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse

from propolis.errors import PropolisError
from propolis_workers.llm.prompts import DECIDED
from propolis_workers.serve import openai_replies as replies
from propolis_workers.serve import openai_tools
from propolis_workers.serve.answering import merged
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (read at run time)
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.openai_settings import grammar_of
from propolis_workers.serve.openai_settings import requests_of
from propolis_workers.serve.openai_shapes import Chat
from propolis_workers.serve.openai_shapes import Text
from propolis_workers.serve.openai_shapes import prompt_alone
from propolis_workers.serve.openai_shapes import reason
from propolis_workers.serve.openai_shapes import usage
from propolis_workers.serve.openai_types import ChatRequest
from propolis_workers.serve.openai_types import CompletionRequest
from propolis_workers.serve.openai_types import listed
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import of_field
from propolis_workers.serve.problems import problem_of


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import AsyncIterator

    from propolis_workers.llm.batch.engine import Request
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service
    from propolis_workers.serve.tool_use import ToolUse

Told = dict[str, Any]


def models(service: Service | None, images: ImageService | None) -> APIRouter:
    """What is served."""
    router = APIRouter(responses={"default": {"model": replies.Error}})
    there = {one.name: one for one in (service, images) if one is not None}

    def told(name: str) -> Told:
        own = there[name]
        context = {} if own is images else {"context_length": service.context if service else 0}
        head = {"id": name, "object": "model", "created": own.created, "owned_by": "propolis"}
        return {**head, **context}

    @router.get("/v1/models/", include_in_schema=False, response_model=replies.ModelList)
    @router.get("/v1/models", response_model=replies.ModelList)
    async def every() -> Told:
        return {"object": "list", "data": [told(name) for name in there]}

    @router.get("/v1/models/{name:path}", response_model=replies.Model)
    async def model(name: str) -> Told:
        if service is not None and service.is_named(name):
            return told(service.name)
        if name not in there:
            known = ", ".join(map(repr, there))
            msg = f"the model {name[:100]!r} is not served here; there is {known}"
            raise ProblemError(404, msg, code="model_not_found", param="model")
        return told(name)

    return router


def routes(service: Service) -> APIRouter:
    """The routes, answered by that service."""
    router = APIRouter(responses={"default": {"model": replies.Error}}, route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=replies.ChatCompletion)
    async def chat(asked: ChatRequest, http: HttpRequest, within: Timeout = None) -> Response:
        until = service.deadlines.until(asked.timeout, within)
        service.expect_model(asked.model)
        _expect_stream(asked)
        if asked.top_logprobs is not None and not asked.logprobs:
            msg = "top_logprobs goes with logprobs: true"
            raise ProblemError(400, msg, param="top_logprobs")
        with of_field("n"):
            service.engine.expect_room(asked.n or 1)
        prompt, grammar, tools = await service.prepared(asked.n or 1, until, _chat, service, asked)
        most = asked.max_completion_tokens or asked.max_tokens
        top = asked.top_logprobs or 0 if asked.logprobs else None
        shown = tools.shown if tools else ()
        if tools is not None and tools.grammar is not None:
            asked.stop = None  # calls that have to be made end where their grammar does
        requests = requests_of(service, asked, [prompt], most, top, grammar, shown)
        answers = [service.answer(request, until, tools) for request in requests]
        return await _respond(service, http, asked, requests, answers, Chat(service))

    @router.post("/v1/completions", response_model=replies.Completion)
    async def completions(
        asked: CompletionRequest, http: HttpRequest, within: Timeout = None
    ) -> Response:
        until = service.deadlines.until(asked.timeout, within)
        _expect_stream(asked)
        if asked.max_tokens == 0 and not asked.echo:
            msg = "max_tokens is 0, which leaves nothing to answer: give at least 1, or echo: true"
            raise ProblemError(400, msg, param="max_tokens")
        service.expect_model(asked.model)
        count = len(listed(asked.prompt)) * (asked.n or 1)
        with of_field("n" if (asked.n or 1) > 1 else "prompt"):
            service.engine.expect_room(count)
        prompts, shape = await service.prepared(count, until, _prompts, service, asked)
        requests = requests_of(service, asked, prompts, asked.max_tokens, asked.logprobs)
        if asked.echo:
            requests = [replace(one, prompt_logprobs=asked.logprobs) for one in requests]
        answers = [service.answer(request, until) for request in requests]
        if asked.max_tokens == 0:
            answers = [prompt_alone(answer) for answer in answers]
        return await _respond(service, http, asked, requests, answers, shape)

    return router


def _expect_stream(asked: ChatRequest | CompletionRequest) -> None:
    if asked.stream_options is not None and not asked.stream:
        msg = "stream_options goes with stream: true; leave it out, or stream"
        raise ProblemError(400, msg, param="stream_options")


def _chat(service: Service, asked: ChatRequest) -> tuple[list[int], str | None, ToolUse | None]:
    """The prompt of a conversation, what the answer has to follow, and its tools."""
    with of_field("tools"):
        tools = openai_tools.planned(service.prompts, asked)
    for name in sorted(DECIDED & asked.template_variables.keys()):
        msg = f"the chat template's {name} is the model's or the request's own: leave it out"
        raise ProblemError(400, msg, param="chat_template_kwargs")
    spoken = openai_tools.spoken(asked.messages)
    most = service.context
    continued = asked.continued
    if asked.add_generation_prompt is not None and asked.add_generation_prompt is continued:
        given = str(asked.add_generation_prompt).lower()
        msg = f"add_generation_prompt is {given}: it goes with continue_final_message, which says "
        raise ProblemError(400, msg + "the contrary; leave it out", param="add_generation_prompt")
    if asked.continue_final_message and not continued:
        msg = "continue_final_message is true; the last message is no text of the assistant's"
        raise ProblemError(400, msg, param="continue_final_message")
    forced = tools is not None and tools.grammar is not None
    if forced and asked.continue_final_message:
        msg = "continue_final_message is true; a call is a message of its own: leave it out"
        raise ProblemError(400, msg, param="continue_final_message")
    variables = asked.template_variables
    with of_field("messages"), service.remedied():
        if tools is None:
            ids = service.prompts.chat(spoken, variables=variables, continued=continued, most=most)
            return ids, grammar_of(asked), None
        ids = service.prompts.chat(
            spoken,
            tools=tools.told,
            variables=variables,
            begun=tools.begun,
            continued=continued and not forced,
            most=most,
        )
    return ids, tools.grammar, tools


async def _respond(
    service: Service,
    http: HttpRequest,
    asked: ChatRequest | CompletionRequest,
    requests: list[Request],
    answers: list[AsyncGenerator[Told]],
    shape: Chat | Text,
) -> Response:
    """Answer, as a stream or in one piece; whoever goes away cancels."""
    head = {
        "id": f"{shape.prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": service.name,
    }
    if asked.stream:
        wanted = asked.stream_options is not None and asked.stream_options.include_usage
        chunks = _stream(head, answers, requests, shape, counted=wanted)
        return StreamingResponse(chunks, media_type="text/event-stream")
    told: list[list[Told]] = [[] for _ in requests]

    async def collect() -> None:
        async with aclosing(merged(answers)) as said:
            async for index, one in said:
                told[index].append(one)

    if not await unless_gone(http, collect()):
        return Response(status_code=499)  # nobody reads it
    if isinstance(shape, Text) and shape.scored:  # long ones take a while: others are answered
        return await asyncio.to_thread(_whole, head, requests, told, shape)
    return _whole(head, requests, told, shape)


def _whole(
    head: Told, requests: list[Request], told: list[list[Told]], shape: Chat | Text
) -> Response:
    ends = [own[-1]["finish"] for own in told]
    choices = []
    for index, own in enumerate(told):
        text = "".join(one["text"] for one in own)
        choices.append({**shape.whole(index, text, own), "finish_reason": reason(ends[index])})
    body = {**head, "object": shape.kind, "choices": choices, "usage": usage(requests, ends)}
    return JSONResponse(body)


async def _stream(
    head: Told,
    answers: list[AsyncGenerator[Told]],
    requests: list[Request],
    shape: Chat | Text,
    *,
    counted: bool,
) -> AsyncIterator[bytes]:
    chunk = shape.kind + ".chunk" if shape.kind.startswith("chat") else shape.kind
    head = {**head, "object": chunk}
    if counted:
        head["usage"] = None

    def event(choice: Told | None, why: str | None = None, **more: Any) -> bytes:
        choices = [] if choice is None else [{**choice, "finish_reason": why}]
        return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

    ends: dict[int, Told] = {}
    try:
        for index in range(len(requests)):
            first = shape.begin(index)
            if first is not None:
                yield event(first)
        async with aclosing(merged(answers)) as said:
            async for index, one in said:
                if one["text"] or one.get("calls") or "logprobs" in one or "prompt" in one:
                    yield event(shape.piece(index, one))
                if "finish" in one:
                    ends[index] = one["finish"]
                    yield event(shape.end(index), reason(one["finish"]))
        if counted:
            counts = usage(requests, [ends[index] for index in range(len(requests))])
            yield event(None, usage=counts)
    except PropolisError as exc:
        problem = problem_of(exc)
        yield b"data: " + json.dumps(problem.body()).encode() + b"\n\n"
        return
    yield b"data: [DONE]\n\n"


def _prompts(service: Service, asked: CompletionRequest) -> tuple[list[list[int]], Text]:
    """
    The tokens of each prompt, and what its choices look like.

    Texts are turned into tokens, ids are taken as they are; a text is echoed as it was given.
    """
    text, most = service.prompts.text, service.context
    every, echoed = listed(asked.prompt), []
    with of_field("prompt"), service.remedied():
        prompts = [text(one, most=most) if isinstance(one, str) else one for one in every]
        for one, ids in zip(every, prompts, strict=True):
            said: tuple[str, list[int]] = ("", [])
            if asked.echo:
                said = one if isinstance(one, str) else service.text(ids), ids
            echoed += [said] * (asked.n or 1)
    scored = asked.echo and asked.logprobs is not None
    return prompts, Text(service, echoed, scored=scored)


__all__ = ["models", "routes"]
