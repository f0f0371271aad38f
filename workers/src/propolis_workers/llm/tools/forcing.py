"""Grammars of calls: an answer that follows one is calls of the tools, by their schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import UsageError
from propolis_workers.llm.grammar import JSON_OPTIONS
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.grammar import lark_grammar
from propolis_workers.llm.grammar import readable_schema
from propolis_workers.llm.schemas import listed_only


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.llm.tokenizer import Tokenizer
    from propolis_workers.llm.tools.families import Family

# Calls of one answer; small models would not end.
MOST_CALLS: Final = 16


def forced(
    family: Family,
    schemas: Mapping[str, dict[str, Any] | None],
    tokenizer: Tokenizer,
    *,
    most: int | None = None,
) -> tuple[str, str]:
    """
    How an answer is made to be calls.

    Args:
        family: how the model writes calls.
        schemas: of the arguments, by the tool's name; None for no arguments. Names are of
            letters, digits, ``_``, ``-`` and ``.``.
        tokenizer: the model's.
        most: calls of the answer.

    Returns:
        What the answer begins with, as part of the prompt, and the grammar of the rest.

    Raises:
        UsageError: a schema cannot be used; says why.
    """
    rules = [
        _rule(number, name, schema, family, tokenizer)
        for number, (name, schema) in enumerate(schemas.items())
    ]
    each = " | ".join(f"call{number}" for number in range(len(rules)))
    most = 1 if family.single else min(most or MOST_CALLS, MOST_CALLS)
    mark = _token(family.marker, tokenizer)
    space = f" {json.dumps(family.opening)} " if family.opening else " "
    end = space + _token(family.closing, tokenizer) if family.closing else ""
    again = '", " call' if family.listed else f"{space}{mark}{space}call{end}"
    start = f"call{end}" + (f" ({again}){{0,{most - 1}}}" if most > 1 else "")
    if family.listed:
        start = f'"[" {start} "]"'
    marker = "" if family.bare else family.marker + family.opening
    return marker, lark_grammar(
        "\n".join([f"start: {start}", f"call: {each}", *rules]), checked=True
    )


def _rule(
    number: int,
    name: str,
    schema: dict[str, Any] | None,
    family: Family,
    tokenizer: Tokenizer,
) -> str:
    """A call of one tool, in the syntax of Lark."""
    wanted = arguments_schema(name, schema)
    if family.named:
        head, tail = f"{json.dumps(name)} {_token(family.named, tokenizer)}", ""
    else:
        head = json.dumps(f'{{"name": "{name}", "{family.arguments}": ')
        tail = '"}"'
    own = json.dumps(wanted | {"x-guidance": JSON_OPTIONS})
    return f"call{number}: {head} arguments{number} {tail}\narguments{number}: %json {own}"


def arguments_schema(name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """
    The schema of what is said: an object, of the properties that are listed and no others.

    Raises:
        UsageError: the schema is not one of an object, or cannot be used.
    """
    wanted = listed_only({"type": "object", "properties": {}, **(schema or {})})
    if wanted["type"] != "object":
        msg = f"the parameters of {name} are of type {wanted['type']!r:.80}; supported: object"
        raise UsageError(msg)
    try:
        json_grammar(wanted)
    except UsageError as exc:
        msg = f"the parameters of {name}: {exc}"
        raise UsageError(msg) from exc
    return readable_schema(wanted)


def _token(text: str, tokenizer: Tokenizer) -> str:
    """A mark in the syntax of Lark: a control token where it is one, else its text."""
    ids = tokenizer.encode(text)
    if len(ids) == 1 and ids[0] in tokenizer.special_ids:
        return f"<[{ids[0]}]>"
    return json.dumps(text)


__all__ = ["MOST_CALLS", "arguments_schema", "forced"]
