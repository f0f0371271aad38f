"""OpenAI's API: chat completions, completions and models."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse

from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers.llm.answer import expect_prompt
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.grammar import lark_grammar
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.stopping import StopStrings
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.openai_types import ChatRequest  # noqa: TC001  (FastAPI reads it)
from propolis_workers.serve.openai_types import CompletionRequest  # noqa: TC001
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import AsyncIterator
    from collections.abc import Sequence

    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

Told = dict[str, Any]
_LENGTH = ("MAX_TOKENS", "CONTEXT_FULL")


def models(service: Service | None, images: ImageService | None) -> APIRouter:
    """What is served."""
    router = APIRouter()
    there = {one.name: one for one in (service, images) if one is not None}

    def told(name: str) -> Told:
        own = there[name]
        context = {} if own is images else {"context_length": service.context if service else 0}
        head = {"id": name, "object": "model", "created": own.created, "owned_by": "propolis"}
        return {**head, **context}

    @router.get("/v1/models")
    async def every() -> Told:
        return {"object": "list", "data": [told(name) for name in there]}

    @router.get("/v1/models/{name}")
    async def model(name: str) -> Told:
        if name not in there:
            known = ", ".join(map(repr, there))
            msg = f"the model {name[:100]!r} is not served here; there is {known}"
            raise ProblemError(404, msg, code="model_not_found", param="model")
        return told(name)

    return router


def routes(service: Service) -> APIRouter:
    """The routes, answered by that service."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(asked: ChatRequest, http: HttpRequest) -> Response:
        service.expect_model(asked.model)
        grammar = await asyncio.to_thread(_grammar, asked)
        spoken = [{"role": one.role, "content": one.text()} for one in asked.messages]
        prompt = await asyncio.to_thread(service.prompts.chat, spoken)
        most = asked.max_completion_tokens or asked.max_tokens
        top = asked.top_logprobs or 0 if asked.logprobs else None
        requests = _requests(service, asked, [prompt], most, top, grammar)
        return await _respond(service, http, asked, requests, _Chat(service))

    @router.post("/v1/embeddings")
    async def embeddings() -> Response:
        # Every architecture that is read here was trained to write, none to embed.
        msg = f"{service.name} writes text and gives no embeddings; take a model made for them"
        raise ProblemError(400, msg, code="embeddings_not_supported", param="model")

    @router.post("/v1/completions")
    async def completions(asked: CompletionRequest, http: HttpRequest) -> Response:
        service.expect_model(asked.model)
        prompts = await asyncio.to_thread(_prompts, service, asked)
        requests = _requests(service, asked, prompts, asked.max_tokens, asked.logprobs)
        echo = [
            service.text(ids) if asked.echo else "" for ids in prompts for _ in range(asked.n or 1)
        ]
        return await _respond(service, http, asked, requests, _Completion(service, echo))

    return router


class _Chat:
    """What chat completions look like."""

    kind = "chat.completion"
    prefix = "chatcmpl"

    def __init__(self, service: Service) -> None:
        self._service = service

    def begin(self, index: int) -> Told | None:
        """The first piece of a stream."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}}

    def piece(self, index: int, one: Told) -> Told:
        """A piece of a stream."""
        return {"index": index, "delta": {"content": one["text"]}, "logprobs": self.likely([one])}

    def end(self, index: int) -> Told:
        """The last piece of a stream, without its reason."""
        return {"index": index, "delta": {}}

    def whole(self, index: int, text: str, told: Sequence[Told]) -> Told:
        """An answer in one piece, without its reason."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self.likely(told)}

    def likely(self, told: Sequence[Told]) -> Told | None:
        """The probabilities of tokens; None where nobody asked."""
        content = [
            {
                **self._token(one["token"], one["logprobs"]["own"]),
                "top_logprobs": [self._token(*pair) for pair in one["logprobs"]["top"]],
            }
            for one in told
            if "logprobs" in one and not self._service.ends(one["token"])
        ]
        return {"content": content, "refusal": None} if content else None

    def _token(self, token: int, logprob: float) -> Told:
        raw = self._service.prompts.tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


class _Completion:
    """What completions look like."""

    kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, service: Service, echo: Sequence[str]) -> None:
        self._service = service
        self._echo = echo

    def begin(self, index: int) -> Told | None:
        """The first piece of a stream: the prompt, where it is wanted."""
        return {"index": index, "text": self._echo[index]} if self._echo[index] else None

    def piece(self, index: int, one: Told) -> Told:
        """A piece of a stream."""
        return {"index": index, "text": one["text"], "logprobs": self.likely([one])}

    def end(self, index: int) -> Told:
        """The last piece of a stream, without its reason."""
        return {"index": index, "text": ""}

    def whole(self, index: int, text: str, told: Sequence[Told]) -> Told:
        """An answer in one piece, without its reason."""
        return {"index": index, "text": self._echo[index] + text, "logprobs": self.likely(told)}

    def likely(self, told: Sequence[Told]) -> Told | None:
        """The probabilities of tokens; None where nobody asked."""
        told = [one for one in told if "logprobs" in one]
        if not told:
            return None
        words = [self._service.text([one["token"]]) for one in told]
        starts = itertools.accumulate(map(len, words), initial=0)
        return {
            "tokens": words,
            "token_logprobs": [one["logprobs"]["own"] for one in told],
            "top_logprobs": [
                {self._service.text([token]): value for token, value in one["logprobs"]["top"]}
                for one in told
            ],
            "text_offset": list(starts)[:-1],
        }


async def _respond(
    service: Service,
    http: HttpRequest,
    asked: ChatRequest | CompletionRequest,
    requests: list[Request],
    shape: _Chat | _Completion,
) -> Response:
    """Answer, as a stream or in one piece; whoever goes away cancels."""
    head = {
        "id": f"{shape.prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": service.name,
    }
    answers = [service.answer(request) for request in requests]
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        chunks = _stream(head, answers, requests, shape, usage=usage)
        return StreamingResponse(chunks, media_type="text/event-stream")
    told: list[list[Told]] = [[] for _ in requests]

    async def collect() -> None:
        async with aclosing(_merged(answers)) as merged:
            async for index, one in merged:
                told[index].append(one)

    if not await unless_gone(http, collect()):
        return Response(status_code=499)  # nobody reads it
    choices = []
    for index, own in enumerate(told):
        text = "".join(one["text"] for one in own)
        choices.append({**shape.whole(index, text, own), "finish_reason": _reason(own[-1])})
    ends = [own[-1]["finish"] for own in told]
    body = {**head, "object": shape.kind, "choices": choices, "usage": _usage(requests, ends)}
    return JSONResponse(body)


async def _stream(
    head: Told,
    answers: list[AsyncGenerator[Told]],
    requests: list[Request],
    shape: _Chat | _Completion,
    *,
    usage: bool,
) -> AsyncIterator[bytes]:
    chunk = shape.kind + ".chunk" if shape.kind.startswith("chat") else shape.kind
    head = {**head, "object": chunk}
    if usage:
        head["usage"] = None

    def event(choice: Told | None, reason: str | None = None, **more: Any) -> bytes:
        choices = [] if choice is None else [{**choice, "finish_reason": reason}]
        return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

    ends: list[Told] = []
    try:
        for index in range(len(requests)):
            first = shape.begin(index)
            if first is not None:
                yield event(first)
        async with aclosing(_merged(answers)) as merged:
            async for index, one in merged:
                if one["text"] or "logprobs" in one:
                    yield event(shape.piece(index, one))
                if "finish" in one:
                    ends.append(one["finish"])
                    yield event(shape.end(index), _reason(one))
        if usage:
            yield event(None, usage=_usage(requests, ends))
    except PropolisError as exc:
        problem = problem_of(exc)
        yield b"data: " + json.dumps(problem.body()).encode() + b"\n\n"
        return
    yield b"data: [DONE]\n\n"


async def _merged(answers: Sequence[AsyncGenerator[Told]]) -> AsyncGenerator[tuple[int, Told]]:
    """What all say as it comes, each with its number; all are left when this is."""
    if len(answers) == 1:
        async with aclosing(answers[0]) as only:
            async for one in only:
                yield 0, one
        return
    said: asyncio.Queue[tuple[int, Told | Exception | None]] = asyncio.Queue()

    async def follow(index: int, answer: AsyncGenerator[Told]) -> None:
        try:
            async with aclosing(answer):
                async for one in answer:
                    said.put_nowait((index, one))
            said.put_nowait((index, None))
        except Exception as exc:  # noqa: BLE001  (raised below)
            said.put_nowait((index, exc))

    tasks = [asyncio.create_task(follow(*pair)) for pair in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            index, what = await said.get()
            if isinstance(what, Exception):
                raise what
            if what is None:
                left -= 1
            else:
                yield index, what
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prompts(service: Service, asked: CompletionRequest) -> list[list[int]]:
    """The tokens of each prompt: texts are turned into them, ids are taken as they are."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [service.prompts.text(prompt)]
    if isinstance(prompt[0], int):
        return [list(map(int, map(str, prompt)))]
    return [service.prompts.text(one) if isinstance(one, str) else one for one in prompt]


def _requests(
    service: Service,
    asked: ChatRequest | CompletionRequest,
    prompts: list[list[int]],
    most: int | None,
    logprobs: int | None,
    grammar: str | None = None,
) -> list[Request]:
    """A request for each choice of each prompt."""
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    StopStrings(stops)  # says what is wrong with them
    service.engine.expect_room(len(prompts) * (asked.n or 1))
    context, requests = service.context, []
    for ids in prompts:
        expect_prompt(ids, len(ids), context, service.config, service.prompts.tokenizer)
        for choice in range(asked.n or 1):
            params = _params(asked, choice, service.prompts.tokenizer.vocab_size)
            room = context - len(ids)
            requests.append(
                Request(
                    prompt=ids,
                    params=params,
                    max_tokens=room if most is None else min(most, room),
                    stops=tuple(stops),
                    logprobs=logprobs,
                    grammar=grammar,
                )
            )
    return requests


def _params(asked: ChatRequest | CompletionRequest, choice: int, known: int) -> SamplingParams:
    def given(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    bias = {}
    for token, value in (asked.logit_bias or {}).items():
        if not token.isdecimal() or len(token) > len(str(known)) or int(token) >= known:
            msg = f"logit_bias names {token[:20]!r}; supported: ids of tokens, 0 to {known - 1}"
            raise UsageError(msg)
        bias[int(token)] = value
    return SamplingParams(
        temperature=given(asked.temperature, 1.0),
        top_p=given(asked.top_p, 1.0),
        top_k=given(asked.top_k, 0),
        min_p=given(asked.min_p, 0.0),
        repetition_penalty=given(asked.repetition_penalty, 1.0),
        presence_penalty=given(asked.presence_penalty, 0.0),
        frequency_penalty=given(asked.frequency_penalty, 0.0),
        logit_bias=bias,
        # Choices of one seed are not all the same.
        seed=None if asked.seed is None else abs(asked.seed) + choice,
    )


def _grammar(asked: ChatRequest) -> str | None:
    """What the answer has to follow; None where it is any text."""
    form = asked.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_grammar()
    if form.type == "grammar":
        return lark_grammar(form.grammar)
    return json_grammar(form.json_schema.schema_)


def _reason(last: Told) -> str:
    return "length" if last["finish"]["stop_reason"] in _LENGTH else "stop"


def _usage(requests: Sequence[Request], ends: Sequence[Told]) -> Told:
    # Choices of one prompt count it once.
    prompt = sum(len(ids) for ids in {id(r.prompt): r.prompt for r in requests}.values())
    drawn = sum(end["tokens"] for end in ends)
    cached = min((end["cached_tokens"] for end in ends), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


__all__ = ["models", "routes"]
