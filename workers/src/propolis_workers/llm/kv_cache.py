"""
The keys and values of all tokens so far, or of a layer's window.

A layer whose queries see a window keeps a ring of pages: token p lies where token p less the
ring's length lay, which no query sees any more. Attention finds it by a table of pages that never
changes, and what a page held before is hidden by the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import NamedTuple
from typing import Protocol

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import PAGE
from propolis_workers.llm.memory import rows_of
from propolis_workers.llm.network.attending import Room
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

    def room(self, layer: int, positions: Tensor) -> Room:
        """Where a layer whose keys and values are alike keeps those of new tokens."""

    def read(self, layer: int, q: Tensor, rules: Rules) -> Tensor:
        """What new tokens of a layer read, once theirs are there."""

    def before(self, layer: int, x: Tensor, positions: Tensor, count: int) -> list[Tensor]:
        """Rows of the tokens before each new one, of a layer that reads nothing older."""

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of (batch, tokens, width) whose logits are wanted."""


def earlier(positions: Tensor, back: int) -> Tensor:
    """Positions of the tokens so many before; where there is none, an index that reads 0."""
    there = ops.ge(positions, ops.full((1, 1), back, dtypes.i32, positions.device))
    none = ops.full((1, 1), np.iinfo(np.int32).max, dtypes.i32, positions.device)
    return ops.where(there, ops.affine(positions, 1, -back), none)


class _Ring(NamedTuple):
    """
    What all layers that keep so many tokens share.

    Attributes:
        rows: how many, as (1, 1), i32.
        table: (batch, pages of the capacity), i32: the page that has each page of a sequence.
    """

    rows: Tensor
    table: Tensor


class KVCache:
    """
    Keys and values of every layer, for one batch of sequences of the same length.

    A layer with a window keeps :func:`rows_of` it, every other layer all tokens.

    Attributes:
        capacity: tokens that fit.
        lengths: (batch,), i32, on the device: valid tokens of each sequence.
    """

    def __init__(self, config: ModelConfig, device: Device, capacity: int, batch: int = 1) -> None:
        self.capacity = capacity
        self.lengths = Tensor.from_numpy(np.zeros(batch, np.int32), device)
        self._written = 0  # tokens that were, since a sequence began: some may be forgotten again
        self._windows = [config.window(layer) for layer in range(config.layers)]
        self._rows = [rows_of(window, capacity) for window in self._windows]
        self._rings = {
            rows: _ring(rows, capacity, batch, device) for rows in self._rows if rows < capacity
        }
        self._places: dict[int, Tensor] = {}
        # Each head's tokens lie together; ops see (batch, rows, heads, dim), or pages.
        memory: list[tuple[Tensor, ...]] = []
        self._both: dict[int, Tensor] = {}
        for layer, rows in enumerate(self._rows):
            both, parts = _room(config, device, layer, batch * rows)
            memory.append(parts)
            if both is not None:
                self._both[layer] = both.unflatten(0, rows)
        self._layers = [
            tuple(kept.unflatten(0, rows) for kept in layer)
            for layer, rows in zip(memory, self._rows, strict=True)
        ]
        self._pages = {
            layer: tuple(kept.unflatten(0, PAGE) for kept in memory[layer])
            for layer, rows in enumerate(self._rows)
            if rows in self._rings
        }

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values at full length."""
        return sum(kept.nbytes for layer in self._layers for kept in layer)

    def expect(self, start: int, end: int) -> None:
        """Say that tokens ``start`` to ``end - 1`` of every sequence come next."""
        self._written = max(self._written, end) if start else end
        self._places = {}
        self.lengths.assign(np.full(self.lengths.shape, end, np.int32))

    def keeps(self, length: int) -> bool:
        """Whether sequences can go on after so many tokens: whether all that is seen is there."""
        return length == 0 or all(
            max(0, length - window + 1) >= self._written - rows
            for window, rows in zip(self._windows, self._rows, strict=True)
            if rows in self._rings
        )

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

        Raises:
            ModelError: they are more tokens at once than a window's layer has room for.
        """
        where = self._where(layer, positions)
        for kept, new in zip(self._layers[layer], (k, v), strict=True):
            ops.kv_append(kept, as_kept(new, kept), where)
        return self.read(layer, q, rules)

    def room(self, layer: int, positions: Tensor) -> Room:
        """
        Where a layer keeps the keys and values of new tokens, which are alike.

        Args:
            layer: its number.
            positions: (batch, tokens), i32.

        Raises:
            ModelError: as :meth:`attend`.
        """
        return Room(self._both[layer], self._where(layer, positions))

    def read(self, layer: int, q: Tensor, rules: Rules) -> Tensor:
        """What :meth:`attend` returns, of tokens whose keys and values are there."""
        ring = self._rings.get(self._rows[layer])
        if ring is None:
            keys, values = self._layers[layer]
            return attend(q, keys, values, self.lengths, rules)
        keys, values = self._pages[layer]
        return attend(q, keys, values, self.lengths, rules, block_table=ring.table)

    def _where(self, layer: int, positions: Tensor) -> Tensor:
        rows = self._rows[layer]
        return self._turned(rows, positions) if rows in self._rings else positions

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

    def _turned(self, rows: int, positions: Tensor) -> Tensor:
        """Where tokens lie in a ring: computed on the device, once a step for all layers alike."""
        count = positions.shape[1]
        if count > CHUNK:
            msg = f"{count} tokens at once; supported: up to {CHUNK}: give them in several calls"
            raise ModelError(msg)
        if rows not in self._places:
            self._places[rows] = ops.remainder(positions, self._rings[rows].rows)
        return self._places[rows]


def _ring(rows: int, capacity: int, batch: int, device: Device) -> _Ring:
    pages = rows // PAGE
    table = np.arange(-(-capacity // PAGE), dtype=np.int32) % pages
    table = table + pages * np.arange(batch, dtype=np.int32)[:, None]
    count = np.array([[rows]], np.int32)
    return _Ring(Tensor.from_numpy(count, device), Tensor.from_numpy(table, device))


def _room(
    config: ModelConfig, device: Device, layer: int, rows: int
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """
    Memory for what a layer keeps of so many tokens, each part (rows, heads, dim).

    Before them all parts as one, side by side, where they are alike.
    """
    dtype, parts = config.kept_as(layer), config.kept(layer)
    if len(set(parts)) > 1 or len(parts) < 2:
        one = (device.empty((heads, rows, dim), dtype) for heads, dim in parts)
        return None, tuple(kept.permute(1, 0, 2) for kept in one)
    heads, dim = parts[0]
    both = device.empty((len(parts) * heads, rows, dim), dtype).permute(1, 0, 2)
    return both, tuple(both.narrow(1, i * heads, heads) for i in range(len(parts)))
