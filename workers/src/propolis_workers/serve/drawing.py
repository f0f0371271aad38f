"""What somebody wants drawn; imports nothing of what draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import Final


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
    """

    params: dict[str, Any]
    loras: tuple[tuple[str, float], ...] = ()
    preview: int = 0


__all__ = ["LARGEST", "Drawing"]
