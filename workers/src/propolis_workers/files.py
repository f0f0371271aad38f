"""Small text files of a model, and libraries that read them: failures name the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

from propolis.errors import FileFormatError


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")


def read_text(path: Path) -> str:
    """
    Read a text file of a model.

    Raises:
        FileFormatError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        msg = f"{path}: there is no such file; get the whole model again"
        raise FileFormatError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as text: {error}"
        raise FileFormatError(msg) from None


def read_json(path: Path) -> dict[str, Any]:
    """
    Read a file that holds one JSON object.

    Raises:
        FileFormatError: it does not.
    """
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not JSON: {error}"
        raise FileFormatError(msg) from None
    if not isinstance(value, dict):
        msg = f"{path} holds a {type(value).__name__}, not an object"
        raise FileFormatError(msg)
    return value


def shielded(what: str, build: Callable[[], _T]) -> _T:
    """Run what the library builds from a file's content; its failures are the file's."""
    try:
        return build()
    except BaseException as error:
        # Rust panics reach Python outside Exception, and their class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        msg = f"{what} cannot be used: {' '.join(str(error).split())[:300]}"
        raise FileFormatError(msg) from None


__all__ = ["read_json", "read_text", "shielded"]
