"""Arguments of Python calls that are of another type than those supported, or no text."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final
from typing import SupportsIndex

from propolis.errors import ArgumentTypeError
from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Iterable


_SHOWN: Final = 60


def shown(value: object) -> str:
    """A wrong value for a message, which stays short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def expect_text(name: str, value: object) -> None:
    """
    Check that a prompt is one text, not a batch of them or nothing.

    Args:
        name: what the caller calls it.
        value: what was given.

    Raises:
        ArgumentTypeError: it is something else.
    """
    if not isinstance(value, str):
        msg = f"{name} is {shown(value)}; supported: a text: give one, and each of several to a "
        msg += "call of its own"
        raise ArgumentTypeError(msg)


def expect_path(name: str, value: object) -> Path:
    """
    Check that a file or folder is named by a path.

    Args:
        name: what the caller calls it.
        value: what was given.

    Raises:
        ArgumentTypeError: it is something else, or empty.
    """
    if not isinstance(value, str | Path) or not str(value):
        msg = f"{name} is {shown(value)}; supported: a path, as str or Path"
        raise ArgumentTypeError(msg)
    return Path(value)


def expect_whole(name: str, value: object, *, least: int) -> int:
    """
    An integer, of Python's or numpy's, as Python's.

    Raises:
        UsageError: it is no integer, a truth value, or below ``least``.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:  # an array
            number = least - 1
        if number >= least:
            return number
    msg = f"{name} is {shown(value)}; allowed: an integer from {least}"
    raise UsageError(msg)


def expect_unicode(what: str, text: str) -> None:
    """
    Refuse a text that no file and no vocabulary holds.

    Raises:
        UsageError: it has a lone surrogate.
        ArgumentTypeError: it is no text.
    """
    if not isinstance(text, str):
        msg = f"{what} is {shown(text)}; supported: a text"
        raise ArgumentTypeError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} holds a lone surrogate at index {error.start}; text must be Unicode"
        raise UsageError(msg) from None


def expect_ids(ids: Iterable[SupportsIndex]) -> list[int]:
    """
    Ids of tokens, of whatever holds them.

    Raises:
        ArgumentTypeError: they are something else than integers.
    """
    try:
        return list(map(operator.index, ids))
    except TypeError:
        msg = f"ids are {shown(ids)}; supported: integers, as `encode` gives them"
        raise ArgumentTypeError(msg) from None


__all__ = ["expect_ids", "expect_text", "expect_unicode", "expect_whole", "shown"]
