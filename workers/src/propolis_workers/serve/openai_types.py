"""What OpenAI's API takes, as far as it is served: a field that is not is refused by name."""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import TopP
from propolis_workers.serve.bodies import expect_content
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (pydantic reads it)
from propolis_workers.serve.openai_tools import Choice  # noqa: TC001  (pydantic reads them)
from propolis_workers.serve.openai_tools import SaidCall  # noqa: TC001
from propolis_workers.serve.openai_tools import Tool  # noqa: TC001
from propolis_workers.serve.tool_use import MOST_TOOLS


Stop = Annotated[list[str], Field(fail_fast=True, max_length=64)] | str | None
_LONG = 1 << 20
_Text = Annotated[str, Field(max_length=_LONG)]
_Tokens = list[Annotated[int, Field(ge=0)]]
_Ids = Annotated[_Tokens, Field(fail_fast=True, min_length=1, max_length=_LONG)]
_Many = Field(min_length=1, max_length=64, fail_fast=True)
_Most = Field(min_length=1, max_length=2048, fail_fast=True)


Prompts = _Text | Annotated[list[_Text], _Many] | _Ids | Annotated[list[_Ids], _Many]
"""A text, the ids of its tokens, or many of either."""

Inputs = _Text | Annotated[list[_Text], _Most] | _Ids | Annotated[list[_Ids], _Most]
"""As :data:`Prompts`, and as many as OpenAI takes for embeddings."""


def listed(prompt: str | list[Any]) -> list[Any]:
    """The prompts that something is."""
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


class _Asked(Body):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Asked):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Text(_Asked):
    """A part of a message."""

    type: Literal["text"]
    text: _Text


class Refusal(_Asked):
    """A part of a message in which a model refused."""

    type: Literal["refusal"]
    refusal: _Text

    @property
    def text(self) -> str:
        """What it says."""
        return self.refusal


class Message(_Asked):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=32)]
    content: (
        _Text | Annotated[list[Text | Refusal], Field(fail_fast=True, max_length=4096)] | None
    ) = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[SaidCall], Field(fail_fast=True, max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    # What clients give back of an answer as they got it, and what no answer here has.
    refusal: _Text | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        """Only who answers may say nothing, as where he calls tools: else a text was lost."""
        expect_content(self.role, self.content)
        return self

    def text(self) -> str:
        """What it says; nothing where it only calls tools."""
        if self.content is None:
            return self.refusal or ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class PlainText(_Asked):
    """An answer of any form."""

    type: Literal["text"]


class JsonObject(_Asked):
    """An answer that is a JSON object."""

    type: Literal["json_object"]


class Schema(_Asked):
    """A JSON schema and its name."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchema(_Asked):
    """An answer that a JSON schema allows."""

    type: Literal["json_schema"]
    json_schema: Schema


class Grammar(_Asked):
    """An answer that a grammar allows, in the syntax of Lark; not OpenAI's."""

    type: Literal["grammar"]
    grammar: Annotated[str, Field(max_length=1 << 16)]


Form = PlainText | JsonObject | JsonSchema | Grammar


class _Common(_Asked):
    model: str = ""
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    # Who asks, and for what: changes nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    # Not OpenAI's, but what its clients send to servers such as this in extra_body.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: Annotated[_Tokens, Field(fail_fast=True, max_length=64)] | None = None
    timeout: Seconds | None = None


class ChatRequest(_Common):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # What changes nothing here: accepted, as clients send it unasked.
    store: bool | None = None
    metadata: Annotated[dict[str, str], Field(max_length=64)] | None = None
    service_tier: str | None = None
    modalities: list[Literal["text"]] | None = None
    response_format: Annotated[Form, Field(discriminator="type")] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    # Whether the answer goes on with a last message of the assistant; vLLM's names, of which the
    # second says the contrary of the first.
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # Variables of the model's chat template; the two below as vLLM and llama.cpp's server have it.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=4096)] | None = None

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is given beside messages and tools."""
        own = {"documents": self.documents, "reasoning_effort": self.reasoning_effort}
        given = {name: value for name, value in own.items() if value is not None}
        return {**given, **(self.chat_template_kwargs or {})}

    @property
    def continued(self) -> bool:
        """Whether the answer goes on with the last message."""
        last = self.messages[-1]
        begun = last.role == "assistant" and not last.tool_calls
        # A conversation of nothing else has nobody to be answered.
        some = len(self.messages) > 1 or bool(last.text().strip())
        return begun and some and self.continue_final_message is not False


class CompletionRequest(_Common):
    """The body of ``POST /v1/completions``."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False


__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "Inputs",
    "Message",
    "Prompts",
    "StreamOptions",
    "listed",
]
