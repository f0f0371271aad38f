"""What a call of a tool is, and calls from JSON that a model wrote."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NoReturn


if TYPE_CHECKING:
    from collections.abc import Collection

# Deeper than any tool's arguments, and far from where the parser's recursion ends.
_DEEPEST: Final = 128
_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_WITHIN: Final = re.compile(r'["\\]')


@dataclass(frozen=True, slots=True)
class Call:
    """
    A call that a model wrote.

    Attributes:
        name: of the tool.
        arguments: by name, values of JSON.
    """

    name: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        """The arguments as JSON."""
        text = json.dumps(self.arguments, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can say and UTF-8 cannot
            return json.dumps(self.arguments)
        return text


class Extent:
    """
    Finds where an object or list of JSON ends, in text that grows; it may yet be no JSON.

    Attributes:
        at: how far was looked.
    """

    def __init__(self, start: int) -> None:
        self.at = start
        self._depth = 0
        self._quoted = False

    def end(self, text: str) -> int | None:
        """
        Look on.

        Args:
            text: what was given before, and more.

        Returns:
            The index behind its last bracket; None where that is not there yet, and -1 where it
            is nested too deeply.
        """
        while found := (_WITHIN if self._quoted else _OUTSIDE).search(text, self.at):
            sign, self.at = found.group(), found.end()
            if sign == "\\":
                self.at += 1  # what is escaped ends nothing
            elif sign == '"':
                self._quoted = not self._quoted
            elif sign in "{[":
                self._depth += 1
                if self._depth > _DEEPEST:
                    return -1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self.at
        self.at = max(self.at, len(text))
        return None


def calls_of(text: str, names: Collection[str]) -> list[Call] | None:
    """
    The calls that JSON tells: an object with name and arguments, or a list of such.

    Args:
        text: what a model wrote.
        names: of the tools that there are.

    Returns:
        The calls; None where it tells none, or anything else beside.
    """
    value = _loaded(text)
    found = [_call(one, names) for one in (value if isinstance(value, list) else [value])]
    calls = [one for one in found if one is not None]
    return calls if calls and len(calls) == len(found) else None


def call_of(name: str, arguments: str, names: Collection[str]) -> Call | None:
    """A call whose arguments alone are JSON; None where it is none."""
    return _call({"name": name, "arguments": _loaded(arguments)}, names)


def _call(value: object, names: Collection[str]) -> Call | None:
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        value = function
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON in a string of JSON, as some models write it
        arguments = _loaded(arguments)
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return Call(name, arguments)


def _loaded(text: str) -> object:
    """The value that JSON tells; None where it is no JSON, which is no call either."""
    try:
        # Models write line breaks into strings as they are.
        return json.loads(text, strict=False, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _refused(word: str) -> NoReturn:
    msg = f"{word} is no JSON"
    raise ValueError(msg)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refused(digits)
    return number


__all__ = ["Call", "Extent", "call_of", "calls_of"]
