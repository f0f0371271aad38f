"""Weights that a file holds in another arrangement than the network takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from propolis.errors import ModelError
from propolis_workers.weights import TensorInfo


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis import DType
    from propolis_workers.weights import Weights


@dataclass(frozen=True, slots=True)
class Piece:
    """
    A tensor made of one that a file holds.

    Attributes:
        of: the file's tensor.
        shape: of the piece.
        take: from the whole, of its own shape, to the piece; of elements, or of a row's bytes
            where the dtype is a block format, whose rows stay whole.
    """

    of: str
    shape: tuple[int, ...]
    take: Callable[[np.ndarray], np.ndarray]


class Rearranged:
    """
    A file's tensors, some of which are replaced by pieces of them.

    Attributes:
        tensors: what there is, by name.
    """

    def __init__(self, source: Weights, pieces: Mapping[str, Piece]) -> None:
        """
        Describe the pieces; none is made yet.

        Args:
            source: the file.
            pieces: by their names; what they are made of is gone.
        """
        self._source = source
        self._pieces = {name: piece for name, piece in pieces.items() if piece.of in source.tensors}
        gone = {piece.of for piece in self._pieces.values()}
        infos = {name: info for name, info in source.tensors.items() if name not in gone}
        for name, piece in self._pieces.items():
            whole = source.tensors[piece.of]
            nbytes = whole.dtype.nbytes(math.prod(piece.shape))
            infos[name] = TensorInfo(name, whole.dtype, piece.shape, whole.offset, nbytes)
        self.tensors: Mapping[str, TensorInfo] = infos

    def data(self, name: str) -> np.ndarray:
        """
        The bytes of a tensor: a view of the file, or a copy where it is a piece.

        Raises:
            ModelError: there is no such tensor, or it cannot be taken from what the file holds.
        """
        piece = self._pieces.get(name)
        if piece is None:
            return self._source.data(name)
        whole = self._source.tensors[piece.of]
        raw = self._source.data(piece.of)
        msg = f"tensor {piece.of} has shape {whole.shape}, which {name} cannot be taken from"
        try:
            taken = piece.take(_as_array(raw, whole.dtype, whole.shape))
        except (ValueError, IndexError) as exc:
            raise ModelError(msg) from exc
        taken = np.ascontiguousarray(taken).reshape(-1).view(np.uint8)
        if taken.size != self.tensors[name].nbytes:
            raise ModelError(msg)
        return taken


def _as_array(raw: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Elements where numpy has the dtype's size, rows of bytes where it is a block format."""
    if dtype.is_block:
        return raw.reshape(*shape[:-1], -1)
    return raw.view(f"u{dtype.block_bytes}").reshape(shape)


__all__ = ["Piece", "Rearranged"]
