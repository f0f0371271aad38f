"""The keys and values of all tokens so far."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Protocol

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.llm.architecture import ModelConfig


class Cache(Protocol):
    """What a network asks of its cache; see :class:`KVCache`."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """What new tokens of a layer read from all keys so far."""

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of (batch, tokens, width) whose logits are wanted."""


class KVCache:
    """
    Keys and values of every layer, for one batch of sequences.

    Attributes:
        capacity: tokens that fit.
        lengths: (batch,), i32, on the device: valid tokens of each sequence.
    """

    def __init__(self, config: ModelConfig, device: Device, capacity: int, batch: int = 1) -> None:
        self.capacity = capacity
        self.lengths = Tensor.from_numpy(np.zeros(batch, np.int32), device)
        # Each head's tokens lie together; ops see (batch, capacity, heads, dim).
        shape = (batch, config.kv_heads, capacity, config.head_dim)
        self._layers = [
            (
                device.empty(shape, dtypes.f32).permute(0, 2, 1, 3),
                device.empty(shape, dtypes.f32).permute(0, 2, 1, 3),
            )
            for _ in range(config.layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values at full length."""
        return sum(k.nbytes + v.nbytes for k, v in self._layers)

    def set_lengths(self, length: int) -> None:
        """Say how many tokens of every sequence are valid."""
        self.lengths.assign(np.full(self.lengths.shape, length, np.int32))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """
        What new tokens of a layer read from all keys so far, their own included.

        Args:
            layer: its number.
            q: (batch, tokens, heads, head_dim), rotated.
            k: (batch, tokens, kv_heads, head_dim), rotated; kept at their positions.
            v: same shape as ``k``; kept too.
            positions: (batch, tokens), i32.

        Returns:
            Shape of ``q``.
        """
        keys, values = self._layers[layer]
        ops.kv_append(keys, k, positions)
        ops.kv_append(values, v, positions)
        return ops.attention(q, keys, values, self.lengths, causal=True)

    def wanted(self, x: Tensor) -> Tensor:
        """The last token's row of each sequence, (batch, 1, width)."""
        return x.narrow(1, x.shape[1] - 1, 1).contiguous()
