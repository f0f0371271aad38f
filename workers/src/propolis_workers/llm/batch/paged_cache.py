"""Keys and values of many sequences, in blocks of one memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.llm.network.attending import Room
from propolis_workers.llm.network.attending import as_kept
from propolis_workers.llm.network.attending import attend


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis import Device
    from propolis import DType
    from propolis_workers.llm.batch.scheduler import Copy
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.attending import Rules

# Block 0 is nobody's: rows that only fill a step up are written there.
NOBODYS: Final = 0


class _Alike(NamedTuple):
    """What keys or values of layers have in common that lie in one memory."""

    local: bool
    heads: int
    dim: int
    dtype: DType


class PagedCache:
    """
    Keys and values of every layer.

    Each head's tokens lie together, so that neighbouring blocks are one piece of memory.

    Attributes:
        size: tokens of a block.
        local: for each layer whether its blocks are those of windows.
        both: for each layer whose keys and values are alike these as one, heads side by side.
        taps: tokens that a short convolution reads, its own included; 0 where no layer has one.
    """

    def __init__(
        self, config: ModelConfig, device: Device, blocks: int, size: int, windows: int = 0
    ) -> None:
        """
        Make room.

        Args:
            config: the model's numbers.
            device: where it is.
            blocks: how many there are, nobody's included.
            size: tokens of a block.
            windows: how many layers with a window have, nobody's included; 0 where they share the
                blocks of all others.
        """
        self.size = size
        self.device = device
        self.local = [windows > 0 and config.window(layer) > 0 for layer in range(config.layers)]
        # What is alike of all layers is one memory, so that a block of it is copied at once.
        alike: dict[_Alike, list[tuple[int, int]]] = {}
        for layer, local in enumerate(self.local):
            for which, (heads, dim) in enumerate(config.kept(layer)):
                kind = _Alike(local, heads, dim, config.kept_as(layer))
                alike.setdefault(kind, []).append((layer, which))
        self._memory: list[tuple[bool, Tensor]] = []
        kept: dict[tuple[int, int], Tensor] = {}
        self.both: dict[int, Tensor] = {}
        for kind, places in alike.items():
            tokens = (windows if kind.local else blocks) * size
            memory = device.empty((len(places) * kind.heads, tokens, kind.dim), kind.dtype)
            self._memory.append((kind.local, memory))
            for number, (layer, which) in enumerate(places):
                own = memory.narrow(0, number * kind.heads, kind.heads)
                kept[layer, which] = own.permute(1, 0, 2)
                if which == 0 and (layer, 1) in places:
                    both = memory.narrow(0, number * kind.heads, 2 * kind.heads)
                    self.both[layer] = both.permute(1, 0, 2)
        self.layers = [
            tuple(kept[layer, which] for which in range(len(config.kept(layer))))
            for layer in range(config.layers)
        ]
        self.taps = config.conv_taps
        for pair, local in zip(self.layers, self.local, strict=True):
            for rows in pair if local else ():
                # It stands for what is behind a window: hidden, and for that it has to be finite.
                own = rows.narrow(0, NOBODYS * size, size)
                ops.assign(own, as_kept(ops.full(own.shape, 0.0, dtypes.f32, device), own))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(rows.nbytes for pair in self.layers for rows in pair)

    def copy(self, copied: Copy) -> None:
        """Write the first tokens of one block into another, for the layers that it is of."""
        for local, memory in self._memory:
            if local is copied.local:
                ops.assign(
                    memory.narrow(1, copied.target * self.size, copied.tokens),
                    memory.narrow(1, copied.source * self.size, copied.tokens),
                )


class Placed(NamedTuple):
    """
    New tokens of a sequence, and where its tokens are.

    Attributes:
        tokens: the new ones.
        first: position of the first.
        blocks: of the sequence, from its first.
        full: how many of them are others' too, and not written to.
        local: its blocks of windows: of the last places.
        behind: how many places there are before these.
    """

    tokens: Sequence[int]
    first: int
    blocks: Sequence[int]
    full: int = 0
    local: Sequence[int] = ()
    behind: int = 0


class _Numbers:
    """
    What the host tells of a step, i32, side by side: one copy takes all of it to the device.

    Args:
        device: where the step is computed.
        shapes: of what it is told.
    """

    def __init__(self, device: Device, shapes: Sequence[tuple[int, ...]]) -> None:
        ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        self._told = np.zeros(ends[-1], np.int32)
        self._numbers = Tensor.from_numpy(self._told, device)
        self.parts = [
            _Told(self._told[start:end].reshape(shape), self._view(start, shape))
            for start, end, shape in zip([0, *ends], ends, shapes, strict=False)
        ]

    def _view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        own = self._numbers.narrow(0, start, math.prod(shape))
        return own if len(shape) == 1 else own.unflatten(0, shape[1])

    def send(self) -> None:
        """Take it there."""
        self._numbers.assign(self._told)


class _Told(NamedTuple):
    """A part of it: on the host, and on the device."""

    array: NDArray[np.int32]
    tensor: Tensor


class _Places:
    """
    Where the tokens of a step are in one kind of blocks.

    Args:
        size: tokens of a block.
        slots: (1, rows): where the new ones go.
        table: (sequences, blocks): each sequence's blocks.
    """

    def __init__(self, size: int, slots: _Told, table: _Told) -> None:
        self._size = size
        self._slots, self.slots = slots
        self._table, self.table = table

    def set(
        self,
        rows: _Rows,
        blocks: Iterable[tuple[Sequence[int], int]],
        full: NDArray[np.int64] | None = None,
    ) -> None:
        """
        Say where they are.

        Args:
            rows: of the step.
            blocks: of each sequence, and how many places are before these.
            full: how many of the first blocks of each row's sequence are not written to.
        """
        self._table.fill(NOBODYS)
        for own, (held, behind) in zip(self._table, blocks, strict=False):
            own[behind : behind + len(held)] = held
        found = self.found(rows.sequences, rows.positions)
        if full is not None:
            there = rows.positions // self._size
            found = np.where(
                there < full, NOBODYS * self._size + rows.positions % self._size, found
            )
        slots = self._slots[0]
        slots[: len(found)] = found
        slots[len(found) :] = NOBODYS

    def found(
        self, sequences: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Where tokens of sequences are, by their positions."""
        place, within = np.divmod(positions, self._size)
        return self._table[sequences, place].astype(np.int64) * self._size + within


class _Rows(NamedTuple):
    """The sequence of each row of a step, and its position there."""

    sequences: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[Placed]) -> _Rows:
        """One after the other."""
        counts = np.fromiter((len(part.tokens) for part in parts), np.int64, len(parts))
        firsts = np.fromiter((part.first for part in parts), np.int64, len(parts))
        sequences = np.repeat(np.arange(len(parts)), counts)
        within = np.arange(len(sequences)) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(sequences, firsts[sequences] + within)


class Step:
    """
    What the sequences of one step are, as data on the device: steps of the same shape are one.

    Rows are new tokens of all sequences, one after the other.

    Attributes:
        ids: (1, rows), i32.
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
        places = [(1, rows), (sequences, blocks)]
        shapes = [
            (1, rows),
            (1, rows),
            (sequences,),
            *places,
            *(places if any(cache.local) else ()),
        ]
        starts = [] if self._decodes else [(sequences + 1,)]
        earlier = [(rows,) for _ in range(1, cache.taps)]
        self._numbers = _Numbers(cache.device, [*shapes, *starts, *earlier])
        told = iter(self._numbers.parts)
        self._ids, self.ids = next(told)
        self._positions, self.positions = next(told)
        self._lengths = next(told)
        self._all = _Places(cache.size, next(told), next(told))
        self._windows = _Places(cache.size, next(told), next(told)) if any(cache.local) else None
        self._starts = None if self._decodes else next(told)
        self._earlier = list(told)
        self._wanted = None
        if wanted is not None:
            self._wanted = Tensor.from_numpy(np.zeros(wanted, np.int32), cache.device)
        self._pages = [
            tuple(rows.unflatten(0, cache.size) for rows in pair) for pair in cache.layers
        ]
        self._rows = [tuple(rows.unsqueeze(0) for rows in pair) for pair in cache.layers]

    def set(self, parts: Sequence[Placed]) -> None:
        """
        Say what this step computes.

        Args:
            parts: of each sequence; of fewer than the step was made for, the others have nothing.
        """
        rows = _Rows.of(parts)
        count = len(rows.sequences)
        ids, positions = self._ids[0], self._positions[0]
        ids[:count] = [token for part in parts for token in part.tokens]
        positions[:count] = rows.positions
        ids[count:] = positions[count:] = 0
        lengths, ends = (
            self._lengths.array,
            np.searchsorted(rows.sequences, range(1, len(parts) + 1)),
        )
        lengths[: len(parts)] = rows.positions[ends - 1] + 1
        lengths[len(parts) :] = 1
        full = np.fromiter((part.full for part in parts), np.int64, len(parts))
        self._all.set(rows, ((part.blocks, 0) for part in parts), full[rows.sequences])
        if self._windows is not None:
            self._windows.set(rows, ((part.local, part.behind) for part in parts))
        for back, (slots, _) in enumerate(self._earlier, 1):
            there = rows.positions - back
            found = self._all.found(rows.sequences, np.maximum(there, 0))
            slots.fill(np.iinfo(np.int32).max)
            slots[:count] = np.where(there >= 0, found, slots[:count])
        if self._starts is not None:
            self._starts.array[0] = 0
            self._starts.array[1 : len(ends) + 1] = ends
            self._starts.array[len(ends) + 1 :] = count
        self._numbers.send()

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
        slots = self._places(layer).slots
        for rows, new in zip(self._rows[layer], (k, v), strict=True):
            ops.kv_append(rows, as_kept(new, rows), slots)
        return self.read(layer, q, rules)

    def room(self, layer: int, positions: Tensor) -> Room:  # noqa: ARG002  (slots say where)
        """As :meth:`KVCache.room`."""
        return Room(self._cache.both[layer].unsqueeze(0), self._places(layer).slots)

    def read(self, layer: int, q: Tensor, rules: Rules) -> Tensor:
        """As :meth:`KVCache.read`."""
        places = self._places(layer)
        keys, values = self._pages[layer]
        if not self._decodes:
            return attend(
                q,
                keys,
                values,
                self._lengths.tensor,
                rules,
                q_start=None if self._starts is None else self._starts.tensor,
                block_table=places.table,
            )
        each = q.permute(1, 0, 2, 3)  # a view also of queries that lie beside keys
        y = attend(each, keys, values, self._lengths.tensor, rules, block_table=places.table)
        return y.reshape(1, *y.shape[:1], *y.shape[2:])

    def before(
        self,
        layer: int,
        x: Tensor,
        positions: Tensor,  # noqa: ARG002  (slots say where)
        count: int,
    ) -> list[Tensor]:
        """As :meth:`KVCache.before`."""
        (rows,) = self._rows[layer]
        ops.kv_append(rows, as_kept(x, rows).unsqueeze(2), self._places(layer).slots)
        own = rows.squeeze(2).squeeze(0)
        ids = self._earlier[count - 1 :: -1]
        return [as_kept(ops.index_select(own, slots), x).unsqueeze(0) for _, slots in ids]

    def wanted(self, x: Tensor) -> Tensor:
        """As :meth:`KVCache.wanted`."""
        return x if self._wanted is None else ops.index_select(x, self._wanted, dim=1)

    def _places(self, layer: int) -> _Places:
        windows = self._windows
        return self._all if windows is None or not self._cache.local[layer] else windows


__all__ = ["NOBODYS", "PagedCache", "Placed", "Step"]
