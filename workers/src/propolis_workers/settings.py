"""Typed values out of a model's settings, with one wording for what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ModelError


if TYPE_CHECKING:
    from collections.abc import Mapping


_KINDS: Final[dict[object, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    (int, float): "a number",
}


class FileSettings:
    """
    The settings of a model: a ``config.json`` or the metadata of a GGUF file.

    A value that is missing or null is the default, where there is one.

    Attributes:
        source: where they come from, for messages.
        values: what they are, by name.
    """

    def __init__(self, source: str, values: Mapping[str, Any], model: str) -> None:
        """
        Prepare to read.

        Args:
            source: where they come from.
            values: by name.
            model: what the file is meant to be ("language model"), for messages.
        """
        self.source = source
        self.values = values
        self._model = model

    def text(self, key: str, default: str | None = None) -> str:
        """
        A string.

        Raises:
            ModelError: it is missing and has no default, or is of another type; so do all.
        """
        return str(self._get(key, str, default))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        return bool(self._get(key, bool, default))

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        return int(self._get(key, int, default))

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        try:
            return float(self._get(key, (int, float), default))
        except OverflowError:  # JSON has integers of any size
            msg = f"{self.source}: {key} is {str(self.values[key])[:60]!r}, outside all floats"
            raise ModelError(msg) from None

    def reciprocal(self, key: str) -> float:
        """One over a number, which is 1 where it is missing."""
        value = self.number(key, 1.0)
        if value == 0:
            raise self.wrong(key, "which nothing is divided by")
        return 1 / value

    def wrong(self, key: str, wanted: str) -> ModelError:
        """The error for a value that does not fit."""
        msg = f"{self.source}: {key} is {str(self.values.get(key))[:60]!r}, {wanted}"
        return ModelError(msg)

    def _get(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            msg = f"{self.source}: {key} is missing: the file is not a complete {self._model}; "
            msg += "get it again"
            raise ModelError(msg)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"of the wrong type; supported: {_KINDS[kind]}")
        return value


__all__ = ["FileSettings"]
