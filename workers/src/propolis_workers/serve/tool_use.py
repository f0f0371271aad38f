"""Tools that a request brings: what the model is told of them, and its calls as answers."""

from __future__ import annotations

import secrets
import string
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final

from pydantic import ConfigDict
from pydantic import Field

from propolis.errors import UsageError
from propolis_workers.llm.answer import Finish
from propolis_workers.llm.tools.forcing import forced
from propolis_workers.llm.tools.reader import Reader
from propolis_workers.serve import messages
from propolis_workers.serve.answers import DeadlineError
from propolis_workers.serve.answers import EngineGoneError
from propolis_workers.serve.bodies import Body


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis_workers.llm.prompts import Prompts
    from propolis_workers.llm.tools.families import Family

Told = dict[str, Any]

# Mistral's templates take ids of nine letters and digits only; the others take any.
_ID_LENGTH: Final = 9
_ID_SIGNS: Final = string.ascii_letters + string.digits

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
MOST_TOOLS: Final = 128


class Function(Body):
    """A function that a model may call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    parameters: dict[str, Any] | None = None
    # Arguments follow the schema where they are forced; else they are what the model wrote.
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """
    How a request's tools are used.

    Attributes:
        family: how the model writes calls.
        told: the tools, as chat templates take them.
        names: that calls may have.
        most: calls of an answer; None for any number.
        begun: what the answer begins with.
        grammar: of the rest; None where it may be any text.
        shown: control tokens that are text.
    """

    family: Family
    told: list[Told]
    names: frozenset[str]
    most: int | None
    begun: str
    grammar: str | None
    shown: tuple[int, ...]


def tool_use(
    prompts: Prompts,
    functions: Sequence[Function],
    *,
    force: bool = False,
    only: str | None = None,
    most: int | None = None,
) -> ToolUse:
    """
    Plan how tools are used.

    Args:
        prompts: of the model.
        functions: the tools.
        force: whether the answer has to be calls.
        only: the one that is called, of them; None for any.
        most: calls of the answer.

    Raises:
        UsageError: the model takes no tools, or a schema cannot be used; says why.
        ModelError: its chat template cannot be used.
    """
    family, tokenizer = prompts.family, prompts.tokenizer
    names = [one.name for one in functions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"two tools have the name {twice}: give each a name of its own"
        raise UsageError(msg)
    schemas = {one.name: one.parameters for one in functions if only in (None, one.name)}
    begun, grammar = "", None
    if force:
        begun, grammar = forced(family, schemas, tokenizer, most=most)
    marks = [tokenizer.encode(mark) for mark in family.marks]
    return ToolUse(
        family=family,
        told=[_told(one) for one in functions],
        names=frozenset(schemas),
        most=most,
        begun=begun,
        grammar=grammar,
        shown=tuple(ids[0] for ids in marks if len(ids) == 1),
    )


async def with_calls(
    answer: AsyncGenerator[Told], use: ToolUse, end: Callable[[], None]
) -> AsyncGenerator[Told]:
    """
    What an answer says, its calls told apart from its text.

    Each has a list ``calls`` more, of mappings with ``index`` (from 0), ``id`` and ``call``; the
    last says in ``finish`` whether there were any (``called``), and whether they are all that
    there may be (``whole``): then the answer is ended, by calling ``end``.
    """
    reader = Reader(use.family, use.names, most=use.most)
    reader.push(use.begun)
    count = drawn = 0
    async with aclosing(answer):
        async for one in answer:
            drawn += "token" in one
            said = reader.push(one["text"], final="finish" in one)
            texts = [part for part in said if isinstance(part, str)]
            calls = [
                {"index": index, "id": new_id(), "call": call}
                for index, call in enumerate(
                    (part for part in said if not isinstance(part, str)), count
                )
            ]
            count += len(calls)
            more: Told = {"text": "".join(texts), "calls": calls}
            if "finish" in one:
                told = {"called": count > 0, "whole": reader.whole}
                more["finish"] = one["finish"] | told
            yield {**one, **more}
            if reader.whole and "finish" not in one:
                end()
                finish = await _how_it_went(answer, drawn)
                yield {"text": "", "calls": [], "finish": finish | {"called": True, "whole": True}}
                return


async def _how_it_went(answer: AsyncGenerator[Told], drawn: int) -> Told:
    """The end of an answer that is ended; what is known where the engine, or its time, ends."""
    try:
        async for one in answer:
            if "finish" in one:
                return dict(one["finish"])
    except (DeadlineError, EngineGoneError):
        pass
    return dict(messages.ended(0, Finish(ids=[0] * drawn))["finish"])


def new_id() -> str:
    """An id for a call."""
    return "".join(secrets.choice(_ID_SIGNS) for _ in range(_ID_LENGTH))


def _told(function: Function) -> Told:
    """
    A tool as OpenAI's API describes it, which is what templates are written for.

    Many read a description and parameters without asking whether they are there.
    """
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or "",
            "parameters": function.parameters or {"type": "object", "properties": {}},
        },
    }


__all__ = ["MOST_TOOLS", "Function", "ToolUse", "new_id", "tool_use", "with_calls"]
