"""How messages word what several of them have to say."""

from __future__ import annotations

import difflib
import errno
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterable


# What a machine answers, whatever a program does: that is no bug of the one that asked.
_RIGHTS: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_OTHERS: Final = (errno.EIO, errno.EMFILE, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOTDIR)


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


def refused(exc: BaseException) -> tuple[str, str] | None:
    """
    What the machine refused to do with a file, and what to do; None of any other exception.

    >>> print(*refused(PermissionError(13, "Permission denied", "/models")), sep="; ")
    /models cannot be used (Permission denied); give this user the right to it, or name another
    """
    if not isinstance(exc, OSError) or exc.filename is None or exc.errno not in _RIGHTS + _OTHERS:
        return None
    do = "give this user the right to it, or name another" if exc.errno in _RIGHTS else "mend that"
    return f"{exc.filename} cannot be used ({exc.strerror})", do


def size_of(nbytes: int) -> str:
    """Bytes for people: ``"1.50 GB"``, ``"12.00 MB"``."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.2f} MB"


def plugin_name(name: str) -> str:
    """A plugin's name as all of them are compared: without case, ``-`` and ``_`` alike."""
    return name.strip().lower().replace("-", "_")


__all__ = ["describe", "did_you_mean", "near_matches", "plugin_name", "refused", "size_of"]
