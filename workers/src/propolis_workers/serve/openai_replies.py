"""What OpenAI's API answers, as openapi.json describes it."""

from __future__ import annotations

from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict


Reason = Literal["stop", "length", "tool_calls"]


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Wrong(_Reply):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class WrongField(_Reply):
    """A field that is wrong."""

    field: str
    constraint: str
    message: str
    value: bool | int | float | str | None = None


class Error(_Reply):
    """A request that is not answered; an event of a stream that ends so."""

    error: Wrong
    errors: list[WrongField] | None = None


class Cached(_Reply):
    """Tokens of prompts that were found in the cache."""

    cached_tokens: int


class Usage(_Reply):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached


class Likely(_Reply):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class LikelyToken(Likely):
    """A token of an answer, and the likeliest at its place."""

    top_logprobs: list[Likely]


class ChatLogprobs(_Reply):
    """The tokens of an answer."""

    content: list[LikelyToken]
    refusal: None


class CalledFunction(_Reply):
    """A function and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(_Reply):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(ToolCall):
    """A call of a tool in a stream: whole."""

    index: int


class AnswerMessage(_Reply):
    """An answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(_Reply):
    """One answer of several."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class _Head(_Reply):
    id: str
    created: int
    model: str


class ChatCompletion(_Head):
    """The answer of ``POST /v1/chat/completions``."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class Delta(_Reply):
    """What comes next of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class DeltaChoice(_Reply):
    """What comes next of one answer of several."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None


class ChatCompletionChunk(_Head):
    """An event of a stream of ``POST /v1/chat/completions``."""

    object: Literal["chat.completion.chunk"]
    choices: list[DeltaChoice]
    usage: Usage | None = None


class TextLogprobs(_Reply):
    """The tokens of a text, and where they begin in it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(_Reply):
    """One text of several."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None


class Completion(_Head):
    """The answer of ``POST /v1/completions``, and an event of its stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage | None = None


class Model(_Reply):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int | None = None


class ModelList(_Reply):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


# An event of a stream is none of the JSON of an answer in one piece.
class Embedding(_Reply):
    """A text as a vector; in base64 of little-endian f32 where that was asked."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TextUsage(_Reply):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(_Reply):
    """What ``POST /v1/embeddings`` gives."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: TextUsage


EVENTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionChunk,
    "/v1/completions": Completion,
}


def describe_events(found: dict[str, Any]) -> dict[str, Any]:
    """Say in a description what the events of streams are."""
    schemas = found["components"]["schemas"]
    for path, event in EVENTS.items():
        if path not in found["paths"]:  # a server may draw and not write
            continue
        schema = event.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[event.__name__] = schema
        own = {"$ref": f"#/components/schemas/{event.__name__}"}
        content = found["paths"][path]["post"]["responses"]["200"]["content"]
        content["text/event-stream"] = {"schema": own}
    return found


__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "Error",
    "Model",
    "ModelList",
    "describe_events",
]
