"""
Answers that follow a grammar, as JSON of a schema: only tokens that can go on are drawn.

Which can is computed by the llguidance library, token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from propolis_workers.llm.tokenizer import Tokenizer


# A space or an indented new line: without a bound, small models draw white space for ever.
WHITE_SPACE: Final = r" ?|\n {0,24}"
_JSON: Any = {"whitespace_pattern": WHITE_SPACE}


# What else an object may have, where a schema says it.
_MORE: Final = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
# Schemas that hold for the same object as the one that has them.
_ALSO: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
# Names that lead to schemas, and what holds none.
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"}) | _DEFINITIONS
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "required"})


def json_grammar(schema: dict[str, Any] | None = None) -> str:
    """
    The grammar of JSON: of any object, or of what a schema allows.

    Raises:
        UsageError: the schema cannot be used; says why.
    """
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)

    try:
        grammar = LLMatcher.grammar_from_json_schema(schema or {"type": "object"}, _JSON)
    except (ValueError, RecursionError) as exc:
        msg = f"the JSON schema cannot be used: {str(exc)[:300]}"
        raise UsageError(msg) from exc
    return _valid(grammar, "the JSON schema")


def listed_only(schema: dict[str, Any]) -> dict[str, Any]:
    """
    A schema whose objects have what it lists and nothing else, as llama.cpp reads schemas.

    JSON Schema allows any others where nothing says otherwise, and a small model goes on with them
    without an end. An object stays open where the schema says what else it may have, where one is
    required that is not listed, and where several parts list its properties: none of them has all.

    >>> listed_only({"type": "array", "items": {"properties": {"a": {"type": "null"}}}})["items"]
    {'properties': {'a': {'type': 'null'}}, 'additionalProperties': False}

    Raises:
        UsageError: it is nested too deeply.
    """
    try:
        return _closed(schema, parts=any(map(_in_parts, _each(schema))))
    except RecursionError as exc:
        msg = "the JSON schema cannot be used: it is nested too deeply"
        raise UsageError(msg) from exc


def _in_parts(schema: dict[str, Any]) -> bool:
    """Whether several parts say what one object has."""
    parts = schema.keys() & _ALSO
    own = schema.keys() & (_MORE | {"properties", "required"})
    several = isinstance(all_of := schema.get("allOf"), list) and len(all_of) > 1
    return bool(parts) and (len(parts) > 1 or bool(own) or several)


def _each(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All schemas within one, itself first."""
    yield schema
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            within = list(value.values())
        else:
            within = [] if key in _NO_SCHEMAS else value if isinstance(value, list) else [value]
        for one in within:
            if isinstance(one, dict):
                yield from _each(one)


def _closed(schema: dict[str, Any], *, parts: bool) -> dict[str, Any]:
    """
    A schema whose objects are closed.

    Args:
        schema: of anything.
        parts: whether what is referred to may be one of several parts of an object.
    """
    parted = _in_parts(schema)
    kept = _NO_SCHEMAS | (_DEFINITIONS if parts else set()) | (_ALSO if parted else set())

    def closed(key: str, value: Any) -> Any:
        if key in kept:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: closed("", one) for name, one in value.items()}
        if isinstance(value, list):
            return [closed("", one) for one in value]
        return _closed(value, parts=parts) if isinstance(value, dict) else value

    told = {key: closed(key, value) for key, value in schema.items()}
    listed, wanted = schema.get("properties"), schema.get("required", [])
    open_ = parted or not schema.keys().isdisjoint(_MORE)
    if isinstance(listed, dict) and not open_ and set(map(str, wanted)) <= listed.keys():
        told["additionalProperties"] = False
    return told


def lark_grammar(text: str) -> str:
    """
    A grammar in the syntax of Lark, with llguidance's extensions.

    Raises:
        UsageError: it cannot be used; says why.
    """
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)

    return _valid(LLMatcher.grammar_from_lark(text), "the grammar")


def _valid(grammar: str, what: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)

    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:
        msg = f"{what} cannot be used: {said[0][:300]}"
        raise UsageError(msg)
    return grammar


class Grammars:
    """Makes constraints for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: Any = None

    def constraint(self, grammar: str) -> Constraint:
        """
        Something that follows a grammar from its beginning.

        Raises:
            UsageError: the grammar cannot be used with this vocabulary; says why.
        """
        from llguidance import LLMatcher  # noqa: PLC0415  (an extra)
        from llguidance import LLTokenizer  # noqa: PLC0415
        from llguidance import TokenizerWrapper  # noqa: PLC0415

        if self._known is None:
            wrapped = TokenizerWrapper(_Vocabulary(self._tokenizer))
            ends = sorted(self._tokenizer.eos_ids)
            self._known = LLTokenizer(wrapped, eos_token=ends or None)
        matcher = LLMatcher(self._known, grammar, log_level=0)
        if matcher.is_error():
            msg = f"the grammar cannot be used: {matcher.get_error()[:300]}"
            raise UsageError(msg)
        return Constraint(matcher)


class Constraint:
    """Where an answer is in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """
        A copy of the logits with -inf for every token that cannot go on.

        Raises:
            UsageError: the grammar is too large to be followed further; says why.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        # It may be too large only where an answer comes to; an end alone is allowed then.
        if self._matcher.is_error():
            msg = f"the grammar cannot be followed further: {self._matcher.get_error()[:300]}"
            raise UsageError(msg)
        can = np.unpackbits(bits, count=logits.size, bitorder="little").astype(bool)
        return np.where(can, logits, np.float32(-np.inf))

    def push(self, token: int) -> None:
        """Go on by a token that was allowed."""
        self._matcher.consume_token(token)


class _Vocabulary:
    """A tokenizer as llguidance asks it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        first = min(tokenizer.eos_ids, default=None)
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else first
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that goes on, whatever control tokens it spells."""
        return self._tokenizer.encode(text, parse_special=False, continues=True)


__all__ = [
    "WHITE_SPACE",
    "Constraint",
    "Grammars",
    "json_grammar",
    "lark_grammar",
    "listed_only",
]
