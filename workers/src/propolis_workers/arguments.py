"""Arguments of Python calls that are of another type than those supported, or no text."""

from __future__ import annotations

from typing import Final

from propolis.errors import ArgumentTypeError
from propolis.errors import UsageError


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


def expect_unicode(what: str, text: str) -> None:
    """
    Refuse a text that no file and no vocabulary holds.

    Raises:
        UsageError: it has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} holds a lone surrogate at index {error.start}; text must be Unicode"
        raise UsageError(msg) from None


__all__ = ["expect_text", "expect_unicode", "shown"]
