"""Typed values out of the settings of Stable Diffusion's models."""

from __future__ import annotations

from typing import Any
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers import settings


_LARGEST: Final = 1 << 20  # no size of a model is above it


class FileSettings(settings.FileSettings):
    """
    A ``config.json`` of diffusers or transformers.

    What makes no sense raises :class:`~propolis.errors.ModelError`, what the models here
    do not do :class:`~propolis.errors.UnsupportedModelError`.
    """

    def expect(self, key: str, *allowed: object, default: Any = None) -> Any:
        """A value that is one of those; missing it is the default."""
        value = self.values.get(key, default)
        if value not in allowed:
            self.refuse(key, value, allowed)
        return value

    def refuse(self, key: str, value: object, allowed: tuple[object, ...]) -> None:
        """Raise the error for a value that the models here do not support."""
        known = ", ".join("none" if a is None else str(a) for a in allowed)
        found = f"{self.source}: {key} is {str(value)[:60]!r}"
        msg = f"{found}, which is not supported; supported: {known}"
        raise UnsupportedModelError(msg)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of elements, at least one."""
        value = self.count(key, default)
        if not 0 < value <= _LARGEST:
            raise self.wrong(key, f"supported: 1 to {_LARGEST}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; null is false, as to diffusers."""
        missing = default if key not in self.values else False
        return super().flag(key, missing)

    def area(self, key: str, default: int) -> tuple[int, int]:
        """Height and width, given as one number for both or as two."""
        value: Any = self.values.get(key)
        value = default if value is None else value
        pair = isinstance(value, list | tuple) and len(value) == 2
        sizes = value if pair else [value, value]
        if not all(type(v) is int and 0 < v <= _LARGEST for v in sizes):
            raise self.wrong(key, f"supported: whole numbers from 1 to {_LARGEST}")
        return sizes[0], sizes[1]

    def sizes(self, key: str, levels: int, default: Any) -> tuple[int, ...]:
        """A size for each level, given as one for all or as a list."""
        values = self._per_level(key, levels, default)
        if not all(type(v) is int and 0 < v <= _LARGEST for v in values):
            raise self.wrong(key, f"supported: whole numbers from 1 to {_LARGEST}")
        return tuple(values)

    def flags(self, key: str, levels: int) -> tuple[bool, ...]:
        """True or false for each level, given as one for all or as a list."""
        values = self._per_level(key, levels, False)
        if not all(isinstance(v, bool) for v in values):
            raise self.wrong(key, "of the wrong type")
        return tuple(values)

    def depths(
        self, key: str, layers: tuple[int, ...], default: int
    ) -> tuple[tuple[int, ...], ...]:
        """Depths of the transformers of each level: one for all of a level, or a list."""
        depths = []
        for value, count in zip(self._per_level(key, len(layers), default), layers, strict=True):
            own = list(value) if isinstance(value, list | tuple) else [value] * count
            if len(own) != count or not all(type(v) is int and 0 <= v <= 1000 for v in own):
                raise self.wrong(key, f"not {count} depths for a level of {count} transformers")
            depths.append(tuple(own))
        return tuple(depths)

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Names, at least one."""
        values = self.values.get(key)
        values = default if values is None else values
        if not isinstance(values, list | tuple) or not values:
            raise self.wrong(key, "not a list of names")
        return tuple(map(str, values))

    def divides(self, key: str, number: int, size: int) -> None:
        """Check that a number divides the model's channels."""
        if size % number:
            msg = f"{self.source}: {key} {number} does not divide the model's {size} channels"
            raise ModelError(msg)

    def _per_level(self, key: str, levels: int, default: Any) -> list[Any]:
        value = self.values.get(key)
        value = default if value is None else value
        values = list(value) if isinstance(value, list | tuple) else [value] * levels
        if len(values) != levels:
            raise self.wrong(key, f"not one value for each of {levels} levels")
        return values


__all__ = ["FileSettings"]
