"""
Answers that follow a grammar, as JSON of a schema: only tokens that can go on are drawn.

Which can is computed by the llguidance library, token by token.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import UsageError
from propolis_workers.llm.schemas import check_multiples
from propolis_workers.llm.schemas import readable
from propolis_workers.llm.schemas import refused


if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from propolis_workers.llm.tokenizer import Tokenizer


# A space or an indented new line: without a bound, small models draw white space for ever.
WHITE_SPACE: Final = r" ?|\n {0,24}"
# What JSON Schema defines (2020-12, Validation, 7.3), and `unknown`, which llguidance has.
_FORMATS: Final = (
    *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname"),
    *("ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex", "unknown"),
)
JSON_OPTIONS: Final[Any] = {"whitespace_pattern": WHITE_SPACE, "coerce_one_of": True}


def json_grammar(schema: dict[str, Any] | None = None) -> str:
    """
    The grammar of JSON: of any object, or of what a schema allows.

    ``oneOf`` is read as ``anyOf``: no grammar says of an answer what else it must not be.

    Raises:
        UsageError: the schema cannot be used; says where it is wrong, and what to do.
    """
    wanted = {"type": "object"} if not schema else readable_schema(schema)
    try:
        return _of_json(wanted)
    except (ValueError, RecursionError) as exc:
        raise UsageError(refused(wanted, str(exc), _wrong)) from exc


def readable_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """
    A schema without what is only a note to its readers.

    Raises:
        UsageError: it is nested too deeply.
    """
    try:
        return readable(schema, _is_format)
    except RecursionError as exc:
        msg = "the JSON schema cannot be used: it is nested too deeply"
        raise UsageError(msg) from exc


_TOO_MUCH = (
    "too much may come next, as where an object of a schema has more than some 1200 properties "
    "that may be left out: require some of them"
)


def _of_json(schema: dict[str, Any]) -> str:
    """The grammar of a schema; raises ValueError where it cannot be used."""
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)

    check_multiples(schema)
    try:
        grammar: str = LLMatcher.grammar_from_json_schema(schema, JSON_OPTIONS)
    except ValueError as exc:
        _, _, number = str(exc).partition("not JSON serializable: ")
        if not number:
            raise
        msg = f"{number[:40]} takes more than 64 bits; supported: numbers of fewer digits"
        raise ValueError(msg) from None
    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:
        raise ValueError(said[0])
    if not _can_begin(grammar):
        msg = "Unsatisfiable schema: it has no beginning, as where it refers to itself alone"
        raise ValueError(msg)
    if not _can_begin(grammar, after=b"{"):
        raise ValueError(_TOO_MUCH)
    return grammar


def _can_begin(grammar: str, *, after: bytes = b"") -> bool:
    """Whether a byte may come first, or after these, where they may come."""
    from llguidance import LLTokenizer  # noqa: PLC0415  (an extra)

    matcher = _matcher(LLTokenizer("byte"), grammar)
    bits = matcher.compute_bitmask()
    for byte in after:
        if matcher.is_error() or not bits[byte >> 3] >> (byte & 7) & 1:
            return True
        matcher.consume_token(byte)
        bits = matcher.compute_bitmask()
    return not matcher.is_error()


def _matcher(tokenizer: Any, grammar: str) -> Any:
    """
    llguidance's, for objects of up to some 1200 properties that may be left out.

    Each of these costs a token of such an object 20 us, and four places of what is tried at once,
    of which 2000 are allowed unless more are asked for.
    """
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)
    from llguidance import LLParserLimits  # noqa: PLC0415

    limits = LLParserLimits(max_items_in_row=5_000, step_max_items=250_000)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def _wrong(schema: dict[str, Any]) -> str:
    """What keeps a schema from being used; nothing where it can be."""
    try:
        _of_json(schema)
    except (ValueError, RecursionError) as exc:
        return str(exc)
    return ""


@cache
def _formats() -> frozenset[str]:
    """The formats that there are grammars for."""
    return frozenset(n for n in _FORMATS if not _wrong({"type": "string", "format": n}))


def _is_format(name: str) -> bool:
    """Whether there is a grammar for texts of a format."""
    return name in _formats()


def _schemas_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON schemas within a grammar that can be read; of others it is said elsewhere."""
    for found in re.finditer(r"%json\s*", text):
        with suppress(ValueError, RecursionError):
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
            if isinstance(schema, dict):
                yield schema


def lark_grammar(text: str, *, checked: bool = False) -> str:
    """
    A grammar in the syntax of Lark, with llguidance's extensions.

    Args:
        text: the grammar.
        checked: whether the schemas within it were, by :func:`json_grammar`, and one alone holds
            at each place.

    Raises:
        UsageError: it cannot be used; says why.
    """
    from llguidance import LLMatcher  # noqa: PLC0415  (an extra)

    try:
        if not checked:
            check_multiples({"anyOf": list(_schemas_in(text))})
    except (ValueError, RecursionError) as exc:
        msg = f"the grammar cannot be used: {exc}"
        raise UsageError(msg) from exc
    grammar: str = LLMatcher.grammar_from_lark(text)
    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:  # its first line; others draw where that is
        place = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", said[0])
        told = f"line {place[1]}, column {place[2]}: {place[3]}" if place else said[0]
        why = re.search("error: (.*)", said[0])
        msg = f"the grammar cannot be used: {told.splitlines()[0].rstrip(':')[:300]}"
        if "::=" in text:
            msg += '; this looks like GBNF: write it in the syntax of Lark, as start: "a" | "b"'
        raise UsageError(f"{msg}: {why[1]}" if why else msg)
    if "<" not in text and not _can_begin(grammar):  # tokens of a vocabulary are no bytes
        msg = "the grammar cannot be used: there is nothing that it allows"
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
        from llguidance import LLTokenizer  # noqa: PLC0415  (an extra)
        from llguidance import TokenizerWrapper  # noqa: PLC0415

        if self._known is None:
            wrapped = TokenizerWrapper(_Vocabulary(self._tokenizer))
            ends = sorted(self._tokenizer.eos_ids)
            self._known = LLTokenizer(wrapped, eos_token=ends or None)
        matcher = _matcher(self._known, grammar)
        if matcher.is_error():
            msg = f"the grammar cannot be used: {_first(matcher)}"
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
            why = _first(self._matcher)
            if "items" in why:
                why = _TOO_MUCH
            msg = f"the grammar cannot be followed further: {why}"
            raise UsageError(msg)
        can = np.unpackbits(bits, count=logits.size, bitorder="little").astype(bool)
        return np.where(can, logits, np.float32(-np.inf))

    def push(self, token: int) -> None:
        """Go on by a token that was allowed."""
        self._matcher.consume_token(token)


def _first(matcher: Any) -> str:
    """The first line of an error; its state, which follows, is nobody's."""
    return str(matcher.get_error()).partition("\n")[0][:300]


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
    "JSON_OPTIONS",
    "Constraint",
    "Grammars",
    "json_grammar",
    "lark_grammar",
    "readable_schema",
]
