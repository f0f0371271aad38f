"""
What one captured call keeps, so that its replays allocate nothing.

A call that an implementation takes as it is needs no memory of its own.  One that is
decomposed needs its parts' results, one that falls to the CPU needs mirrors there, and
one whose inputs must be packed needs their copies.  All of these live only while the
call runs: the calls of a graph share one stock of memory, as large as the neediest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.released import storage_of
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator

    from propolis.device import Device
    from propolis.device import Storage
    from propolis.dispatch.fallback import Mirrored
    from propolis.dispatch.ladder import Ladder
    from propolis.dispatch.table import DispatchTable
    from propolis.graph import Graph


class Stock:
    """
    Memory that the calls of a graph take turns in.

    Attributes:
        blocks: on the device.
        buffers: on the host.
    """

    def __init__(self) -> None:
        self.blocks: list[Storage] = []
        self.buffers: list[np.ndarray] = []

    def host(self, number: int, nbytes: int) -> np.ndarray:
        """The first bytes of one of the buffers, which grows to hold them."""
        while len(self.buffers) <= number:
            self.buffers.append(np.empty(0, np.uint8))
        if self.buffers[number].nbytes < nbytes:
            self.buffers[number] = np.empty(nbytes, np.uint8)
        return self.buffers[number][:nbytes]

    def take_over(self, temporaries: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
        """
        Move a call's temporaries to blocks of this stock; add their own where none is free.

        Args:
            temporaries: written before they are read, whenever the call runs.
            tensors: every tensor that the call holds, views of temporaries among them.
        """
        held = [*tensors]
        used = {id(storage_of(tensor)) for tensor in held}
        free = [block for block in self.blocks if id(block) not in used]
        known = {id(block) for block in self.blocks}
        needed = {id(t.storage): t.storage for t in temporaries if id(t.storage) not in known}
        moved: dict[int, Storage] = {}
        for storage in sorted(needed.values(), key=lambda s: s.nbytes, reverse=True):
            large = [block for block in free if block.nbytes >= storage.nbytes]
            if large:
                block = min(large, key=lambda b: b.nbytes)
                free.remove(block)
                moved[id(storage)] = block
            else:
                self.blocks.append(storage)
        for tensor in held:
            block_or_none = moved.get(id(storage_of(tensor)))
            if block_or_none is not None:
                tensor.storage = block_or_none
                tensor._array = None  # noqa: SLF001  (the view of the memory before)


class Site:
    """
    One captured call.

    Attributes:
        stock: the graph's memory.
        inner: whether it is part of another call, whose temporaries it must not overwrite:
            then what it needs is its own, until that call plans for both.
        steps: the parts of its decomposition, recorded when it first ran.
        mirrored: its tensors on the CPU, made when it first fell there.
        ladder: who may run it; set when it is bound.
    """

    ladder: Ladder

    def __init__(self, table: DispatchTable, stock: Stock, *, inner: bool) -> None:
        self.table = table
        self.stock = stock
        self.inner = inner
        self.steps: Graph | None = None
        self.mirrored: Mirrored | None = None
        self._copies: dict[int | str, Tensor] = {}

    def on(self, cpu: Device) -> Site:
        """The same call's site on the CPU, where it fell to."""
        return Site(cpu.table, self.stock, inner=True)

    def decompose(
        self, fn: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run the op's decomposition; its parts, once they were recorded."""
        if self.steps is not None:
            self.steps.replay()
            return
        from propolis.graph import Graph  # noqa: PLC0415  (graph imports site)
        from propolis.graph import recording  # noqa: PLC0415

        steps = Graph(self.stock, inner=True)
        with recording(self.table, steps):
            fn(*args, **kwargs)
        self.steps = steps
        if not self.inner:
            given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
            theirs = {id(storage_of(tensor)) for tensor in given}
            mine = [t for t in self.written() if id(storage_of(t)) not in theirs]
            self.stock.take_over(mine, self.tensors())

    def only_queues(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call, as it last ran, queues work on the device and does nothing else."""
        from propolis import ops  # noqa: PLC0415  (ops imports dispatch)

        impl = self.ladder.server(args, kwargs)
        if impl is None:
            return self.mirrored is None and self.steps is not None and self.steps.only_queues()
        servers = [impl]
        for copy in self._copies.values():
            winner = self.table.trace(ops.copy, ops.copy.key(copy.dtype)).winner
            if winner is None:
                return False
            servers.append(winner)
        return all(server.capture_safe for server in servers)

    def packed(self, place: int | str, value: Tensor) -> Tensor:
        """
        A contiguous copy of a strided input.

        Args:
            place: which argument it is.
            value: the input.
        """
        from propolis import ops  # noqa: PLC0415  (ops imports dispatch)

        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = value.device.empty(value.shape, value.dtype)
            if not self.inner:
                self.stock.take_over([copy], self.tensors())
        return ops.copy.into(copy, value)

    def written(self) -> Iterator[Tensor]:
        """What it and its parts write before they read it."""
        yield from self._copies.values()
        if self.steps is not None:
            yield from self.steps.written()

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that it and its parts hold, apart from its arguments."""
        yield from self._copies.values()
        if self.steps is not None:
            yield from self.steps.tensors()
