"""Tools in OpenAI's words: what requests say of them, and messages that call or answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import ConfigDict
from pydantic import Field

from propolis_workers.serve.bodies import Body
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.tool_use import Function
from propolis_workers.serve.tool_use import tool_use


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis_workers.llm.prompts import Prompts
    from propolis_workers.serve.openai_types import ChatRequest
    from propolis_workers.serve.openai_types import Message
    from propolis_workers.serve.tool_use import ToolUse

Told = dict[str, Any]


class _Asked(Body):
    model_config = ConfigDict(extra="forbid", strict=True)


class Tool(_Asked):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function


class ChosenName(_Asked):
    """The name of a function."""

    name: str


class Chosen(_Asked):
    """The function that is to be called."""

    type: Literal["function"]
    function: ChosenName


Choice = Literal["none", "auto", "required"] | Chosen


class SaidFunction(_Asked):
    """What a model called, with its arguments as JSON."""

    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=1 << 20)]


class SaidCall(_Asked):
    """A call in a conversation's past."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: SaidFunction

    def told(self) -> Told:
        """As chat templates take it: arguments that are no object remain the text they are."""
        arguments: Any = self.function.arguments
        try:
            found = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            arguments = found
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


def spoken(messages: Sequence[Message]) -> list[Told]:
    """A conversation as chat templates take it."""
    names: dict[str, str] = {}
    told: list[Told] = []
    for message in messages:
        # What OpenAI calls so now is what templates know as system.
        role = "system" if message.role == "developer" else message.role
        one: Told = {"role": role, "content": message.text()}
        if message.tool_calls:  # many templates ask whether it is there, not what is in it
            one["tool_calls"] = [call.told() for call in message.tool_calls]
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.name is not None:
            one["name"] = message.name
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
            if message.tool_call_id in names:
                one["name"] = names[message.tool_call_id]
        told.append(one)
    return told


def planned(prompts: Prompts, asked: ChatRequest) -> ToolUse | None:
    """
    How a request's tools are used; None where they are not.

    Raises:
        ProblemError: what it says of tools does not fit together.
        PropolisError: as :func:`propolis_workers.serve.tool_use.tool_use`.
    """
    choice = asked.tool_choice
    if not asked.tools:
        if choice not in (None, "none", "auto"):
            msg = "tool_choice wants a call and there are no tools: give tools"
            raise ProblemError(400, msg, param="tool_choice")
        return None
    functions = [tool.function for tool in asked.tools]
    names = [function.name for function in functions]
    if choice == "none":
        return None
    only = choice.function.name if isinstance(choice, Chosen) else None
    if only is not None and only not in names:
        msg = f"tool_choice names {only[:80]!r}; there are: {', '.join(names)}"
        raise ProblemError(400, msg, param="tool_choice")
    if asked.response_format is not None and asked.response_format.type != "text":
        msg = "an answer follows response_format or calls tools: give one of them, or tool_choice "
        msg += '"none"'
        raise ProblemError(400, msg, param="response_format")
    return tool_use(
        prompts,
        functions,
        force=choice == "required" or only is not None,
        only=only,
        # A function that is named is called once.
        most=1 if only is not None or asked.parallel_tool_calls is False else None,
    )


def call(told: Told) -> Told:
    """A call of an answer."""
    own = told["call"]
    function = {"name": own.name, "arguments": own.text}
    return {"id": told["id"], "type": "function", "function": function}


__all__ = ["Choice", "SaidCall", "Tool", "call", "planned", "spoken"]
