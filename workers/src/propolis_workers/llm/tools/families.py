"""
How models write calls: by families, which a chat template's text tells apart.

A family is a row of :data:`FAMILIES`; one that writes no JSON is a row and a body of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.llm.tools.calls import Extent
from propolis_workers.llm.tools.calls import call_of
from propolis_workers.llm.tools.calls import calls_of


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis_workers.llm.tools.calls import Call

# White space that a model may put around a call, and the longest name with its id.
_MOST_SPACE: Final = 64
_MOST_NAME: Final = 256


@dataclass(frozen=True, slots=True)
class Read:
    """
    A piece of text that might have been calls.

    Attributes:
        used: characters of it.
        calls: that it holds; none where it is text.
    """

    used: int
    calls: list[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """
    One way to write calls.

    Attributes:
        name: of the way.
        marker: where calls begin.
        opening: what is between that and the first call.
        closing: what ends a call, or all of them.
        arguments: the key of a call's arguments.
        listed: whether the calls are a list; else the marker begins each.
        named: what is between a call's name and its arguments, where the name is not in the JSON.
        words: further marks.
        bare: whether JSON at the beginning of an answer is a call too, without a marker.
        single: whether a message of a conversation holds one call at most.
        hidden: whether the marks are control tokens, and so no text where they begin no call.
        has: texts that are in every template of the family.
        lacks: texts that are in none.
    """

    name: str
    marker: str
    opening: str = ""
    closing: str = ""
    arguments: str = "arguments"
    listed: bool = False
    named: str = ""
    words: tuple[str, ...] = ()
    bare: bool = False
    single: bool = False
    hidden: bool = False
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All that must be seen where a model's vocabulary has tokens of their own for it."""
        return tuple(filter(None, (self.marker, self.closing.strip(), self.named, *self.words)))

    def body(self) -> Body:
        """What reads what follows a marker."""
        return NamedBody(self) if self.named else Body(self)


class Body:
    """Reads what follows a marker: calls as JSON, and what closes them."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._start: int | None = None
        self._extent = Extent(0)
        self._end: int | None = None

    def read(self, text: str, names: Collection[str], *, final: bool) -> Read | None:
        """
        Look at what there is.

        Args:
            text: all that follows the marker so far.
            names: of the tools.
            final: whether there will be no more.

        Returns:
            What it is; None where more must come first.
        """
        if self._start is None:
            begun = self._begun(text)
            if begun is None:
                return Read(len(text), []) if final else None
            if begun < 0:
                return Read(0, [])
            self._start, self._extent = begun, Extent(begun)
        if self._end is None:
            self._end = self._extent.end(text)
        if self._end is None:
            return Read(len(text), []) if final else None
        if self._end < 0:
            return Read(self._extent.at, [])
        used = self._closed(text, self._end, final=final)
        if used is None:
            return None
        calls = self._calls(text, self._start, self._end, names) if used else None
        return Read(used or self._end, calls or [])

    def _begun(self, text: str) -> int | None:
        """Where the JSON begins; None where that is not there yet, -1 where there is none."""
        return _after_space(text, 0, "{[")

    def _closed(self, text: str, end: int, *, final: bool) -> int | None:
        """How much is used with what closes it; 0 where other text follows, None to wait."""
        closing = self._family.closing
        if not closing:
            return end
        rest = text[end:].lstrip()
        if len(text) - len(rest) - end > _MOST_SPACE:
            return 0
        if rest.startswith(closing):
            return len(text) - len(rest) + len(closing)
        if not closing.startswith(rest):
            return 0
        return len(text) if final else None  # many models end without closing

    def _calls(self, text: str, start: int, end: int, names: Collection[str]) -> list[Call] | None:
        return calls_of(text[start:end], names)


class NamedBody(Body):
    """Reads a call whose name is before its JSON, perhaps with an id."""

    def _begun(self, text: str) -> int | None:
        at = text.find(self._family.named)
        name, most = (
            (text, _MOST_NAME + len(self._family.named)) if at < 0 else (text[:at], _MOST_NAME)
        )
        if len(name) > most or any(sign in name for sign in "{}\n"):
            return -1
        if at < 0:
            return None
        return _after_space(text, at + len(self._family.named), "{")

    def _calls(self, text: str, start: int, end: int, names: Collection[str]) -> list[Call] | None:
        name = text[: text.index(self._family.named)]
        for word in self._family.words:
            name = name.partition(word)[0]
        call = call_of(name.strip(), text[start:end], names)
        return None if call is None else [call]


def _after_space(text: str, at: int, signs: str) -> int | None:
    while at < len(text) and text[at].isspace() and at < _MOST_NAME + _MOST_SPACE:
        at += 1
    if at == len(text):
        return None
    return at if text[at] in signs else -1


FAMILIES: Final = (
    Family(
        name="hermes",  # and Qwen 2.5 and 3
        marker="<tool_call>",
        opening="\n",
        closing="</tool_call>",
        has=("<tool_call>", '"name"', '"arguments"'),
        lacks=("<tool_calls>", "<function=", "<arg_key>", "<invoke", "<parameter"),
    ),
    Family(
        name="mistral",
        marker="[TOOL_CALLS]",
        listed=True,
        hidden=True,
        has=("[TOOL_CALLS]",),
        lacks=("[ARGS]",),
    ),
    Family(
        name="mistral-args",  # from its 11th version of tokens
        marker="[TOOL_CALLS]",
        named="[ARGS]",
        words=("[CALL_ID]",),
        hidden=True,
        has=("[TOOL_CALLS]", "[ARGS]"),
    ),
    Family(
        name="llama",  # 3.1 to 3.3
        marker="<|python_tag|>",
        arguments="parameters",
        bare=True,
        single=True,
        hidden=True,
        has=("<|start_header_id|>", '"name"', '"parameters"'),
        lacks=("<function=", "<tool_call>", "functools"),
    ),
)


def family_of(template: str) -> Family | None:
    """The family that a chat template shows its model; None where it is none of these."""
    plain = template.replace('\\"', '"')
    for family in FAMILIES:
        wanted = all(text in plain for text in family.has)
        if wanted and not any(text in plain for text in family.lacks):
            return family
    return None


__all__ = ["FAMILIES", "Body", "Family", "NamedBody", "Read", "family_of"]
