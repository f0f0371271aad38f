"""Rotary embeddings of sequences, of each kind that a model's layers have."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.llm.rope import rope_tables


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.config import Rope

# Positions that rope tables begin with, and that are computed at a time.
_STEP: Final = 4096


class Rotation:
    """
    Turns queries and keys by the angles of their positions.

    Attributes:
        cos: (positions, rope_dim / 2) f32, on the device.
        sin: same shape.
        interleaved: whether pairs are neighbours.
    """

    def __init__(self, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
        self.cos = cos
        self.sin = sin
        self.interleaved = interleaved

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """(b, t, heads, head_dim) -> the same, rotated."""
        return ops.rope(x, positions, self.cos, self.sin, interleaved=self.interleaved)

    def append(self, cache: Tensor, x: Tensor, slots: Tensor, positions: Tensor) -> None:
        """Keys, which it turns, beside values into a cache, as ``ops.rope_kv_append`` has it."""
        tables = self.cos, self.sin
        ops.rope_kv_append(cache, x, slots, positions, *tables, interleaved=self.interleaved)


Rotations = tuple[Rotation, ...]
"""A sequence's own, one of each of the config's ``ropes``."""


class RopeTables:
    """
    The rotations of sequences, for all the positions that one needed so far.

    Not all positions from the start: a file may claim a context of any length.
    """

    def __init__(self, config: ModelConfig, device: Device) -> None:
        self._config = config
        self._device = device
        # The last rotations, and the length that they were made for; swapped at once, as sequences
        # may begin in several threads.
        self._last: tuple[int, int, Rotations] | None = None

    def reserve(self, length: int) -> Rotations:
        """
        The rotations of a sequence that may have so many tokens.

        They are the sequence's own from then on: keys that they turned stay as they are, and where
        angles depend on the length, another sequence has others.
        """
        rows, last = max(length, _STEP), self._last
        if last is not None and self.alike(length, last[0]):
            have = last[1]
            if length <= have:
                return last[2]
            rows = max(length, 2 * have)
        rows = min(rows, self._config.context_length)
        rotations = tuple(self._made(rope, length, rows) for rope in self._config.ropes)
        self._last = length, rows, rotations
        return rotations

    def alike(self, length: int, other: int) -> bool:
        """Whether sequences that may have so many tokens are turned by the same angles."""

        def angles(rope: Rope, tokens: int) -> np.ndarray:
            return rope_frequencies(rope.dim, rope.base, rope.scaling, tokens)[0]

        return all(
            np.array_equal(angles(rope, length), angles(rope, other)) for rope in self._config.ropes
        )

    def _made(self, rope: Rope, length: int, rows: int) -> Rotation:
        tables = np.empty((2, rows, rope.dim // 2), np.float32)
        for start in range(0, rows, _STEP):  # bounds the memory in f64
            positions = np.arange(start, min(start + _STEP, rows))
            tables[:, positions] = rope_tables(rope.dim, positions, rope.base, rope.scaling, length)
        cos, sin = (Tensor.from_numpy(table, self._device) for table in tables)
        return Rotation(cos, sin, interleaved=rope.interleaved)


__all__ = ["RopeTables", "Rotation", "Rotations"]
