"""Keys and values of many sequences, in blocks of one memory."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis_workers.llm.network.attending import as_kept
from propolis_workers.llm.network.attending import attend


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import Device
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.attending import Rules

# Block 0 is nobody's: rows that only fill a step up are written there.
NOBODYS: Final = 0


class PagedCache:
    """
    Keys and values of every layer.

    Each head's tokens lie together, so that neighbouring blocks are one piece of memory.

    Attributes:
        blocks: how many there are, nobody's included.
        size: tokens of a block.
        taps: tokens that a short convolution reads, its own included; 0 where no layer has one.
    """

    def __init__(self, config: ModelConfig, device: Device, blocks: int, size: int) -> None:
        self.blocks = blocks
        self.size = size
        self.device = device
        self.layers = [
            tuple(
                device.empty((heads, blocks * size, dim), config.kv_dtype).permute(1, 0, 2)
                for heads, dim in config.kept(layer)
            )
            for layer in range(config.layers)
        ]
        self.taps = config.conv_taps

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Write the first tokens of one block into another."""
        for pair in self.layers:
            for rows in pair:
                ops.assign(
                    rows.narrow(0, target * self.size, tokens),
                    rows.narrow(0, source * self.size, tokens),
                )


class Step:
    """
    What the sequences of one step are, as data on the device: steps of the same shape are one.

    Rows are new tokens of all sequences, one after the other.

    Attributes:
        ids: (1, rows), i64.
        positions: (1, rows), i32: of each token in its sequence.
    """

    def __init__(
        self,
        cache: PagedCache,
        sequences: int,
        rows: int,
        blocks: int,
        *,
        wanted: int | None = None,
    ) -> None:
        """
        Make room for a step.

        Args:
            cache: where keys and values go.
            sequences: how many there are.
            rows: new tokens in all; as many as sequences where each has one.
            blocks: the most that one sequence has.
            wanted: how many rows' logits are wanted; None for all.
        """
        self._cache = cache
        self._decodes = rows == sequences
        self.ids = self._numbers((1, rows), np.int64)
        self.positions = self._numbers((1, rows), np.int32)
        self._slots = self._numbers((1, rows), np.int32)
        self._lengths = self._numbers((sequences,), np.int32)
        self._table = self._numbers((sequences, blocks), np.int32)
        self._starts = None if self._decodes else self._numbers((sequences + 1,), np.int32)
        self._earlier = [self._numbers((rows,), np.int32) for _ in range(1, cache.taps)]
        self._wanted = None if wanted is None else self._numbers((wanted,), np.int32)
        self._pages = [
            tuple(rows.unflatten(0, cache.size) for rows in pair) for pair in cache.layers
        ]
        self._rows = [tuple(rows.unsqueeze(0) for rows in pair) for pair in cache.layers]

    def set(self, parts: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> None:
        """
        Say what this step computes.

        Args:
            parts: for each sequence its new tokens, the position of the first, and its blocks;
                fewer than the step was made for where each has one token.
        """
        size = self._cache.size
        ids = np.zeros(self.ids.shape[1], np.int64)
        positions, slots = (np.zeros(len(ids), np.int32) for _ in range(2))
        lengths = np.ones(self._lengths.shape, np.int32)
        table = np.full(self._table.shape, NOBODYS, np.int32)
        before = np.full((len(self._earlier), len(ids)), np.iinfo(np.int32).max, np.int32)
        starts, row = [0], 0
        for number, (tokens, first, blocks) in enumerate(parts):
            end = row + len(tokens)
            at = np.arange(first, first + len(tokens), dtype=np.int32)
            own = np.asarray(blocks, np.int32)
            ids[row:end], positions[row:end] = tokens, at
            slots[row:end] = own[at // size] * size + at % size
            for back, slots_before in enumerate(before, 1):
                there = np.maximum(at - back, 0)
                found = own[there // size] * size + there % size
                slots_before[row:end] = np.where(at >= back, found, slots_before[row:end])
            lengths[number] = first + len(tokens)
            table[number, : len(own)] = own
            starts.append(end)
            row = end
        for tensor, array in (
            (self.ids, ids[None]),
            (self.positions, positions[None]),
            (self._slots, slots[None]),
            (self._lengths, lengths),
            (self._table, table),
        ):
            tensor.assign(array)
        for tensor, array in zip(self._earlier, before, strict=True):
            tensor.assign(array)
        if self._starts is not None:
            self._starts.assign(np.asarray(starts, np.int32))

    def want(self, rows: Sequence[int]) -> None:
        """Say which rows' logits are wanted."""
        if self._wanted is not None:
            self._wanted.assign(np.asarray(rows, np.int32))

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,  # noqa: ARG002  (slots say where)
        rules: Rules,
    ) -> Tensor:
        """As :meth:`KVCache.attend`."""
        for rows, new in zip(self._rows[layer], (k, v), strict=True):
            ops.kv_append(rows, as_kept(new, rows), self._slots)
        keys, values = self._pages[layer]
        if not self._decodes:
            return attend(
                q,
                keys,
                values,
                self._lengths,
                rules,
                q_start=self._starts,
                block_table=self._table,
            )
        _, count, heads, dim = q.shape
        each = q.reshape(count, 1, heads, dim)
        y = attend(each, keys, values, self._lengths, rules, block_table=self._table)
        return y.reshape(1, count, heads, y.shape[3])

    def before(
        self,
        layer: int,
        x: Tensor,
        positions: Tensor,  # noqa: ARG002  (slots say where)
        count: int,
    ) -> list[Tensor]:
        """As :meth:`KVCache.before`."""
        (rows,) = self._rows[layer]
        ops.kv_append(rows, as_kept(x, rows).unsqueeze(2), self._slots)
        own = rows.squeeze(2).squeeze(0)
        ids = self._earlier[count - 1 :: -1]
        return [as_kept(ops.index_select(own, slots), x).unsqueeze(0) for slots in ids]

    def wanted(self, x: Tensor) -> Tensor:
        """As :meth:`KVCache.wanted`."""
        return x if self._wanted is None else ops.index_select(x, self._wanted, dim=1)

    def _numbers(self, shape: tuple[int, ...], dtype: type) -> Tensor:
        return Tensor.from_numpy(np.zeros(shape, dtype), self._cache.device)


__all__ = ["NOBODYS", "PagedCache", "Step"]
