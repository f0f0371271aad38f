"""The keys and values of all tokens so far."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Protocol

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.llm.network.attending import as_kept
from propolis_workers.llm.network.attending import attend


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.attending import Rules


class Cache(Protocol):
    """What a network asks of its cache; see :class:`KVCache`."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rules: Rules
    ) -> Tensor:
        """What new tokens of a layer read from all keys so far."""

    def before(self, layer: int, x: Tensor, positions: Tensor, count: int) -> list[Tensor]:
        """Rows of the tokens before each new one, of a layer that reads nothing older."""

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of (batch, tokens, width) whose logits are wanted."""


def earlier(positions: Tensor, back: int) -> Tensor:
    """Positions of the tokens so many before; where there is none, an index that reads 0."""
    there = ops.ge(positions, ops.full((1, 1), back, dtypes.i32, positions.device))
    none = ops.full((1, 1), np.iinfo(np.int32).max, dtypes.i32, positions.device)
    return ops.where(there, ops.affine(positions, 1, -back), none)


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
        self._layers = [
            tuple(
                device.empty((batch, heads, capacity, dim), config.kv_dtype).permute(0, 2, 1, 3)
                for heads, dim in config.kept(layer)
            )
            for layer in range(config.layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values at full length."""
        return sum(kept.nbytes for layer in self._layers for kept in layer)

    def set_lengths(self, length: int) -> None:
        """Say how many tokens of every sequence are valid."""
        self.lengths.assign(np.full(self.lengths.shape, length, np.int32))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rules: Rules
    ) -> Tensor:
        """
        What new tokens of a layer read from all keys so far, their own included.

        Args:
            layer: its number.
            q: (batch, tokens, heads, head_dim), rotated.
            k: (batch, tokens, kv_heads, head_dim), rotated; kept at their positions.
            v: (batch, tokens, kv_heads, value_dim); kept too.
            positions: (batch, tokens), i32.
            rules: how the layer weighs keys.

        Returns:
            (batch, tokens, heads, value_dim).
        """
        keys, values = self._layers[layer]
        ops.kv_append(keys, as_kept(k, keys), positions)
        ops.kv_append(values, as_kept(v, values), positions)
        return attend(q, keys, values, self.lengths, rules)

    def before(self, layer: int, x: Tensor, positions: Tensor, count: int) -> list[Tensor]:
        """
        Rows of the tokens before each new one, of a layer that reads nothing older.

        Args:
            layer: its number.
            x: (batch, tokens, width): the new ones' own, which are kept at their positions.
            positions: (batch, tokens), i32.
            count: how many tokens before each.

        Returns:
            So many of the shape of ``x``, the oldest first; 0 before a sequence's first token.
        """
        (rows,) = self._layers[layer]
        ops.kv_append(rows, as_kept(x, rows).unsqueeze(2), positions)
        batch, tokens, width = x.shape
        own = rows.squeeze(2)
        found = []
        for back in range(count, 0, -1):
            ids = earlier(positions, back).unsqueeze(2).broadcast_to(batch, tokens, width)
            found.append(as_kept(ops.gather(own, ids, 1), x))
        return found

    def wanted(self, x: Tensor) -> Tensor:
        """The last token's row of each sequence, (batch, 1, width)."""
        return x.narrow(1, x.shape[1] - 1, 1).contiguous()
