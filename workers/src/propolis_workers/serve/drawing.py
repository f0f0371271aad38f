"""What somebody wants drawn; imports nothing of what draws."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Mapping


LARGEST: Final = 2048
"""Pixels along a side of an image, at most."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """
    What somebody wants drawn.

    Attributes:
        params: arguments of :class:`~propolis_workers.sd.params.GenerateParams`; ``image`` and
            ``mask`` are files in base64.
        loras: names of LoRA files with their strengths.
        preview: steps between previews; 0 for none.
        fields: what whoever asked calls a parameter, where it is another name.
    """

    params: dict[str, Any]
    loras: tuple[tuple[str, float], ...] = ()
    preview: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)


__all__ = ["LARGEST", "Drawing"]
