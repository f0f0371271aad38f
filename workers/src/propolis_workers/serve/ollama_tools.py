"""Messages and tools in Ollama's words."""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import expect_content
from propolis_workers.serve.tool_use import Function
from propolis_workers.serve.tool_use import Name


Told = dict[str, Any]
_Text = Annotated[str, Field(max_length=1 << 20)]


class _Asked(Body):
    model_config = ConfigDict(extra="ignore")


class Described(_Asked):
    """A function, described."""

    name: Name
    description: _Text | None = None
    parameters: dict[str, Any] | None = None

    def checked(self) -> Function:
        """As tools are used."""
        return Function(
            name=self.name, description=self.description, parameters=_said(self.parameters)
        )


class Tool(_Asked):
    """A tool that a model may call."""

    type: Literal["function"] | None = "function"
    function: Described


class SaidFunction(_Asked):
    """What a model called."""

    name: Annotated[str, Field(max_length=256)]
    arguments: dict[str, Any] = Field({})


class SaidCall(_Asked):
    """A call in a conversation's past."""

    function: SaidFunction


class Spoken(_Asked):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=32)]
    content: _Text | None = None
    images: list[Any] | None = None
    tool_calls: Annotated[list[SaidCall], Field(fail_fast=True, max_length=128)] | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        """As OpenAI's: only who answers may say nothing."""
        expect_content(self.role, self.content)
        return self


def spoken(messages: list[Spoken]) -> list[Told]:
    """
    A conversation as chat templates take it.

    Ollama's calls have no ids, which some templates want: they are numbered, and what tools
    answered follows them in order.
    """
    count, open_calls = 0, []
    told: list[Told] = []
    for one in messages:
        own: Told = {"role": one.role, "content": one.content or ""}
        if one.tool_calls:
            own["tool_calls"] = []
            for call in one.tool_calls:
                name, count = f"{count:09d}", count + 1
                function = {"name": call.function.name, "arguments": call.function.arguments}
                own["tool_calls"].append({"id": name, "type": "function", "function": function})
                open_calls.append(own["tool_calls"][-1])
        if one.role == "tool":
            known = [call for call in open_calls if call["function"]["name"] == one.tool_name]
            answered = next(iter(known or open_calls), None)
            if answered is not None:
                open_calls.remove(answered)
                own["tool_call_id"] = answered["id"]
                own["name"] = answered["function"]["name"]
            if one.tool_name:
                own["name"] = one.tool_name
        told.append(own)
    return told


def message(one: Told) -> Told:
    """A piece of an answer, or all of it."""
    said: Told = {"role": "assistant", "content": one["text"]}
    if one.get("calls"):
        said["tool_calls"] = [
            {"function": {"name": call.name, "arguments": call.arguments}}
            for call in (told["call"] for told in one["calls"])
        ]
    return {"message": said}


def _said(schema: Any, depth: int = 3) -> Any:
    """A schema without the nulls by which Ollama's client says that a key is not there."""
    if isinstance(schema, dict) and depth:
        return {key: _said(value, depth - 1) for key, value in schema.items() if value is not None}
    return schema


__all__ = ["Spoken", "Tool", "message", "spoken"]
