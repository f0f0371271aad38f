"""What a network wants of a file, before any of it is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from propolis_workers.layers import expected
from propolis_workers.llm.layers import Layers
from propolis_workers.rehearsal import RehearsalDevice


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis import DType
    from propolis import Tensor
    from propolis.ops import OpSpec
    from propolis_workers.weights import Weights


class LayersSought(Layers):
    """Layers whose weights are looked for, with their shapes, and not read."""

    def __init__(self, source: Weights, names: Mapping[str, str], dtype: DType) -> None:
        super().__init__(source, names, RehearsalDevice(), dtype=dtype)

    def has_kernel(self, op: OpSpec, *kinds: DType) -> bool:
        """Nobody."""
        del op, kinds
        return False

    def _prepared(self, weight: Tensor) -> Tensor:
        return weight

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        # Pages of zeros, which take no memory.
        return np.zeros(sum(part.nbytes for part in parts), np.uint8)

    def _raw(
        self, name: str, shape: tuple[int, ...], suffix: str = ".weight", number: int = 0
    ) -> tuple[np.ndarray, DType]:
        dtype = expected(self._source, self._full(name, suffix, number), shape).dtype
        return np.zeros(dtype.nbytes(math.prod(shape)), np.uint8), dtype


__all__ = ["LayersSought"]
