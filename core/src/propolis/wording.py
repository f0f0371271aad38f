"""How messages word what several of them have to say."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3, otherwise: str = "") -> str:
    """
    A question that names what ``name`` may have been meant to be.

    Args:
        name: what is not there.
        known: what is.
        most: how many of those are named.
        otherwise: the answer where nothing known is near.

    >>> did_you_mean("sofmax", ["softmax", "add"])
    'did you mean softmax?'
    """
    near = near_matches(name, known, most=most)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def near_matches(
    name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6
) -> list[str]:
    """Those of ``known`` that are at least so like ``name``, of 1, the likeliest first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)


def describe(exc: BaseException) -> str:
    """An exception in one line: its type and its text."""
    text = " ".join(str(exc).splitlines())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def size_of(nbytes: int) -> str:
    """Bytes for people: ``"1.50 GB"``, ``"12.00 MB"``."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def plugin_name(name: str) -> str:
    """A plugin's name as all of them are compared: without case, ``-`` and ``_`` alike."""
    return name.strip().lower().replace("-", "_")


__all__ = ["describe", "did_you_mean", "near_matches", "plugin_name", "size_of"]
