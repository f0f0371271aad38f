"""
Capture a step once, replay it many times.

While a step is captured, every op runs as usual and its bound call, with the
tensors it was given, is kept.  A replay runs those calls again over the same
memory: no inference, no allocation, no look-up.  What changes between replays (token ids,
positions) is therefore data in tensors, never Python numbers.

That holds on every rung of the ladder.  A call that an implementation takes as it is needs no
memory of its own.  One that is decomposed needs its parts' results, one that falls to the
CPU needs mirrors there, and one whose strided inputs are copied needs the copies.  All of
these live only while the call runs: the calls of a graph take turns in one scratch memory,
as large as the neediest.

Where the device has graphs of its own (:meth:`propolis.Device.record`), every stretch of
calls that only queue work becomes one of them, and a replay launches it at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextlib import suppress
from functools import partial
from itertools import groupby
from threading import get_ident
from typing import TYPE_CHECKING
from typing import cast

import numpy as np

from propolis import inflight
from propolis.dispatch.base import Table
from propolis.dispatch.call import Call
from propolis.dispatch.call import Handler
from propolis.dispatch.fallback import Mirrored
from propolis.dispatch.quarantine import GRAPHS
from propolis.dispatch.temporaries import Temporaries
from propolis.errors import DispatchError
from propolis.errors import OutOfMemoryError
from propolis.opspec.spec import catalogue
from propolis.released import storage_of
from propolis.tensor import opened


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis.dispatch.resolve import Server
    from propolis.records import Recorder
    from propolis.storage import Storage
    from propolis.tensor import Device
    from propolis.tensor import Tensor


@contextmanager
def capture(device: Device | str) -> Iterator[Graph]:
    """
    Keep every op that runs on ``device`` inside the ``with`` block.

    Views made inside the block are part of the graph as they are; tensors allocated inside it
    live as long as the graph, but for those that nobody holds at its end: these take turns in
    memory, much as they did in the step.  Only this thread's ops are kept.  The graph can be
    replayed once the block has ended; where that raises, it is closed.

    Raises:
        DispatchError: this thread is capturing the device already, or somebody looks at its
            calls.
        OutOfMemoryError: what takes turns has too little memory; the step itself has run.

    >>> import numpy as np
    >>> from propolis import Tensor, capture, default_runtime, ops
    >>> x = Tensor.from_numpy(np.float32([1, 2]))
    >>> with capture(default_runtime().cpu) as graph:
    ...     y = ops.add(x, x)
    >>> x.assign(np.float32([3, 4]))
    >>> graph.replay()
    >>> y.numpy().tolist()
    [6.0, 8.0]
    """
    device = opened(device)
    table, scratch = Table.of(device), Scratch()
    graph = Graph(scratch)
    try:
        with table.watch(_Capturing(table, graph), "capture"):
            device.steps[get_ident()] = scratch.temporaries
            try:
                yield graph
            finally:
                del device.steps[get_ident()]
        scratch.temporaries.settle(device)
        graph.join(device)
    except BaseException:
        graph.close()
        raise


class _Capturing(Handler):
    """Keeps a thread's calls in a graph, and runs them."""

    def __init__(self, table: Table, graph: Graph) -> None:
        self._table = table
        self._graph: Graph | None = graph

    def run(self, call: Call, proceed: Callable[[], None]) -> None:
        """Keep a call; what an implementation calls itself is part of its own call."""
        graph, self._graph = self._graph, None
        try:
            if graph is None:
                proceed()
            else:
                graph.run(self._table, call)
        finally:
            self._graph = graph


class Graph:
    """
    The calls of one captured step, in order.

    Attributes:
        scratch: the memory that its calls take turns in.
    """

    def __init__(self, scratch: Scratch, *, inner: bool = False) -> None:
        self.scratch = scratch
        self._inner = inner
        self._calls: list[CapturedCall] = []
        self._again: list[Callable[[], None]] = []
        self._joined: list[Callable[[], None]] | None = None
        self._whole = False
        self._generation = 0
        self._serialised: Device | None = None
        self._ready = inner

    def replay(self) -> None:
        """
        Run the captured calls again, over the same tensors.

        Raises:
            DispatchError: the graph was closed, or its step has not ended; or this thread's calls
                are captured or watched, who would see nothing of these.
        """
        if not self._ready:
            msg = "this graph cannot be replayed: its step is being captured, or it was closed"
            raise DispatchError(msg)
        if self._calls and not self._inner:
            self._calls[0].table.expect_unseen("replay")
        if self._joined is not None and self._calls[0].table.generation != self._generation:
            self._joined = None  # somebody else serves an op now: ask for each call again
        if self._serialised is not None and not self._calls[0].table.quarantine.serialises(
            self._serialised
        ):
            with suppress(OutOfMemoryError):  # then call by call, as until now
                self.join(self._serialised)
        for step in self._joined or self._again:
            step()

    def only_queues(self) -> bool:
        """Whether every call, as it last ran, queues work on the device and does nothing else."""
        return all(call.only_queues() for call in self._calls)

    def is_one_launch(self) -> bool:
        """Whether a replay is one launch, as things stand: nothing of it is done call by call."""
        current = self._joined is not None and self._generation == self._calls[0].table.generation
        return current and self._whole

    def join(self, device: Device) -> None:
        """
        Let the device make one launch of each stretch of calls that only queue work.

        Raises:
            DeviceLostError: the device failed for good.
        """
        table, self._ready, self._serialised = Table.of(device), True, None
        if not self._calls or table.handlers(None):
            return  # what somebody looks at runs call by call
        if table.quarantine.serialises(device):
            self._serialised = device
            return
        steps: list[Callable[[], None]] = []
        for recorder, stretch in groupby(self._calls, partial(_recorder, device)):
            calls = list(stretch)
            joined = _one_launch(device, recorder, calls) if recorder and len(calls) > 1 else None
            steps += [call.again for call in calls] if joined is None else [joined]
            self._whole = joined is not None and len(calls) == len(self._calls)
        self._generation = table.generation
        self._joined = steps

    def close(self) -> None:
        """Let go of the step and its memory, now and not when the garbage collector comes by."""
        for call in self._calls:
            call.close()
        self._joined, self._ready = None, False
        self._calls.clear()
        self._again.clear()
        self.scratch.blocks.clear()
        self.scratch.buffers.clear()

    def __len__(self) -> int:
        return len(self._calls)

    def run(self, table: Table, call: Call) -> None:
        """Run a call, and keep it if it succeeds."""
        temporaries = self.scratch.temporaries
        captured = CapturedCall(table, temporaries.own(call), self.scratch, inner=self._inner)
        try:
            captured.again()
        finally:
            if not self._inner:
                temporaries.let_go()
        self._calls.append(captured)
        self._again.append(captured.again)

    def tensors(self, *, written: bool = False) -> Iterator[Tensor]:
        """Every tensor of all calls and their parts; or only what they write on the way."""
        for captured in self._calls:
            yield from captured.call.outputs
            yield from () if written else captured.call.read
            yield from captured.tensors(written=written)


def _recorder(device: Device, captured: CapturedCall) -> Recorder | None:
    """What makes one launch of this call and others like it: the implementation, or the device."""
    if not captured.only_queues():
        return None
    impl = captured.server.impl
    return device.record if impl is None or impl.record is None else impl.record


def _one_launch(
    device: Device, recorder: Recorder, calls: Sequence[CapturedCall]
) -> Callable[[], None] | None:
    """One launch of all the calls; None where there is none, or it crashed once."""
    first = calls[0].server.provenance
    name, barred = GRAPHS, None
    if first is not None:
        name, barred = Table.of(device).quarantine.graphs(first, device)
    if barred is not None:
        return None
    names = dict.fromkeys(captured.call.spec.name for captured in calls)
    name = f"{name} {len(calls)} calls of {', '.join(names)}"
    # Named as well while it is made: that asks the driver for much.
    again = [captured.again for captured in calls]
    joined = device.guarded(inflight.named(recorder, name), again)
    if joined is None:
        return None
    launch = inflight.named(joined, name)

    def run() -> None:
        device.launched = cast("inflight.Launch", launch)  # whose name alone is asked for
        device.guarded(launch)

    return run


class CapturedCall:
    """
    One call of a graph, and what it keeps so that its replays allocate nothing.

    Attributes:
        table: of the device where it runs.
        call: the call.
        bound: what runs the op with arguments like its own.
        again: runs it.
    """

    def __init__(self, table: Table, call: Call, scratch: Scratch, *, inner: bool) -> None:
        """
        Bind a call.

        Args:
            table: of the device where it runs.
            call: the call.
            scratch: the graph's memory.
            inner: whether it is part of another call, whose temporaries it must not overwrite:
                then what it needs is its own, until that call plans for both.
        """
        self.table = table
        self.call = call
        self._scratch = scratch
        self._inner = inner
        self._parts: Graph | None = None
        self._mirrored: Mirrored | None = None
        self._on_cpu: CapturedCall | None = None
        self._copies: dict[int | str, Tensor] = {}
        self.bound = table.bind_captured(self, call.spec, call.key)
        self.again: Callable[[], None] = partial(self.bound, *call.args, **call.attributes)

    @property
    def server(self) -> Server:
        """Who runs it as things stand."""
        return self.table.server(self.call)

    def only_queues(self) -> bool:
        """Whether the call, as it last ran, queues work on the device and does nothing else."""
        impl = self.server.impl
        if impl is None:
            return self._mirrored is None and self._parts is not None and self._parts.only_queues()
        spec = catalogue()["copy"]
        keys = [spec.key(copy.dtype) for copy in self._copies.values()]
        servers = [impl, *(self.table.trace(spec, key).winner for key in keys)]
        return all(server is not None and server.capture_safe for server in servers)

    def contiguous(self, place: int | str, value: Tensor) -> Tensor:
        """
        A contiguous copy of a strided input, in memory that is kept.

        Args:
            place: which argument it is.
            value: the input.
        """
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = value.device.empty(value.shape, value.dtype)
            if not self._inner:
                self._scratch.take_over([copy], self.tensors())
        self.table.copy_into(copy, value)
        return copy

    def decompose(self, fn: Callable[..., None], call: Call) -> None:
        """Run the op's decomposition; its parts, once they were captured."""
        if self._parts is not None:
            self._parts.replay()
            return
        parts = Graph(self._scratch, inner=True)
        with self.table.intercept(_Capturing(self.table, parts), thread=get_ident()):
            call.run(fn)
        self._parts = parts
        if not self._inner:
            theirs = {id(storage_of(tensor)) for tensor in (*call.outputs, *call.read)}
            mine = [t for t in self.tensors(written=True) if id(storage_of(t)) not in theirs]
            self._scratch.take_over(mine, self.tensors())

    def run_on_cpu(self, call: Call) -> None:
        """Run the call on the CPU, over mirrors that are kept."""
        if self._mirrored is None:
            cpu = self.table.cpu
            there = self._on_cpu = CapturedCall(Table.of(cpu), call, self._scratch, inner=True)
            self._mirrored = Mirrored(call, cpu, there.bound, self._scratch.host)
        self._mirrored()

    def close(self) -> None:
        """Let go of the tensors: what runs the call holds it, in cycles of its own."""
        self.bound = self.again = _nothing
        self.call = Call(self.call.spec, self.call.key, (), (), {})
        self._copies.clear()
        self._mirrored = None
        for inside in (self._parts, self._on_cpu):
            if inside is not None:
                inside.close()

    def tensors(self, *, written: bool = False) -> Iterator[Tensor]:
        """What it and its parts hold apart from its arguments; or only what they write first."""
        yield from self._copies.values()
        if self._parts is not None:
            yield from self._parts.tensors(written=written)


def _nothing(*args: object, **kwargs: object) -> None:
    """What a closed call does."""


class Scratch:
    """
    Memory that the calls of a graph take turns in.

    Attributes:
        blocks: on the device.
        buffers: on the host.
        temporaries: what the step makes, while it is captured.
    """

    def __init__(self) -> None:
        self.temporaries = Temporaries()
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
        Move a call's temporaries to blocks of this memory; add their own where none is free.

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


__all__ = ["CapturedCall", "Graph", "Scratch", "capture"]
