"""
Record a step once, replay it many times.

While a step is captured, every op runs as usual and its bound call, with the
tensors it was given, is kept.  A replay runs those calls again over the same
memory: no inference, no allocation, no look-up.  That holds on every rung of the
ladder: what a decomposed call, a copied input or a fallback needs is kept too (see
:mod:`propolis.dispatch.site`).  What changes between replays (token ids, positions) is
therefore data in tensors, never Python numbers.

Where the device has graphs of its own (:meth:`propolis.Device.record`), every stretch of
calls that only queue work becomes one of them, and a replay launches it at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any

from propolis import inflight
from propolis.dispatch.quarantine import GRAPHS
from propolis.dispatch.site import Site
from propolis.dispatch.site import Stock
from propolis.errors import DispatchError
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis.device import Device
    from propolis.dispatch.table import DispatchTable
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec


class Graph:
    """
    The calls of one captured step, in order.

    Attributes:
        stock: the memory that its calls take turns in.
    """

    def __init__(self, stock: Stock | None = None, *, inner: bool = False) -> None:
        self.stock = stock or Stock()
        self._inner = inner
        self._calls: list[partial[None]] = []
        self._sites: list[Site] = []
        self._written: list[Tensor] = []
        self._steps: list[Callable[[], None]] | None = None
        self._generation = 0

    def replay(self) -> None:
        """Run the captured calls again, over the same tensors."""
        if self._steps is not None and self._sites[0].table.generation != self._generation:
            self._steps = None  # somebody else serves an op now: ask for each call again
        for step in self._steps or self._calls:
            step()

    def only_queues(self) -> bool:
        """Whether every call, as it last ran, queues work on the device and does nothing else."""
        return all(map(self._queues, self._calls, self._sites))

    def join(self, device: Device) -> None:
        """
        Let the device make one launch of each stretch of calls that only queue work.

        Raises:
            DeviceLostError: the device failed for good.
        """
        if not self._calls or device.table.placement.metrics is not None:
            return  # what is measured runs call by call
        steps: list[Callable[[], None]] = []
        queue = map(self._queues, self._calls, self._sites)
        recorded = zip(queue, self._calls, self._sites, strict=True)
        for only_queues, stretch in groupby(recorded, itemgetter(0)):
            _, calls, sites = zip(*stretch, strict=True)
            joined = self._joined(device, calls, sites) if only_queues and len(calls) > 1 else None
            steps += calls if joined is None else [joined]
        self._generation = device.table.generation
        self._steps = steps

    @staticmethod
    def _joined(
        device: Device, calls: Sequence[partial[None]], sites: Sequence[Site]
    ) -> Callable[[], None] | None:
        """One launch of all the calls; None where the device makes none, or crashed at one."""
        first = sites[0].ladder.server(calls[0].args, calls[0].keywords)
        name, barred = GRAPHS, None
        if first is not None and first.provenance is not None:
            name, barred = device.table.quarantine.graphs(first.provenance, device)
        if barred is not None:
            return None
        names = dict.fromkeys(site.ladder.spec.name for site in sites)
        name = f"{name} {len(calls)} calls of {', '.join(names)}"
        # Named as well while it is recorded: that asks the driver for much.
        joined = device.guarded(inflight.named(device.record, name), calls)
        return None if joined is None else partial(device.guarded, inflight.named(joined, name))

    @staticmethod
    def _queues(call: partial[None], site: Site) -> bool:
        return site.only_queues(call.args, call.keywords)

    def __len__(self) -> int:
        return len(self._calls)

    def run(
        self,
        table: DispatchTable,
        spec: OpSpec,
        key: Key,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run a call, and keep it if it succeeds."""
        site = Site(table, self.stock, inner=self._inner)
        call = partial(table.bind_at(site, spec, key), *args, **kwargs)
        # What an implementation calls itself (a copy of a strided input) is part of its
        # own call: replaying that repeats it.
        with recording(table, None):
            call()
        self._calls.append(call)
        self._sites.append(site)
        self._written.extend(args[: spec.outputs])

    def written(self) -> Iterator[Tensor]:
        """The destinations of all calls, and what they and their parts write on the way."""
        yield from self._written
        for site in self._sites:
            yield from site.written()

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of all calls and their parts."""
        for call in self._calls:
            values = (*call.args, *call.keywords.values())
            yield from (value for value in values if isinstance(value, Tensor))
        for site in self._sites:
            yield from site.tensors()


@contextmanager
def capture(device: Device) -> Iterator[Graph]:
    """
    Record every op that runs on ``device`` inside the ``with`` block.

    Views made inside the block are part of the recording as they are; tensors
    allocated inside it live as long as the graph.  Only this thread's ops are kept.

    Raises:
        DispatchError: this thread is capturing the device already, or its calls are
            being shadowed.

    >>> import numpy as np
    >>> from propolis import Tensor, default_runtime, ops
    >>> from propolis.graph import capture
    >>> x = Tensor.from_numpy(np.float32([1, 2]))
    >>> with capture(default_runtime().cpu) as graph:
    ...     y = ops.add(x, x)
    >>> x.assign(np.float32([3, 4]))
    >>> graph.replay()
    >>> y.numpy().tolist()
    [6.0, 8.0]
    """
    table = device.table
    if isinstance(table.bound, _Recorder):
        taken = get_ident() in table.bound.graphs
    else:
        taken = table.bound is not table.plain
    if taken:
        msg = f"capture: {device.id} is being captured or shadowed already: neither nests"
        raise DispatchError(msg)
    graph = Graph()
    with recording(table, graph):
        yield graph
    graph.join(device)


@contextmanager
def recording(table: DispatchTable, graph: Graph | None) -> Iterator[None]:
    """Keep this thread's calls in ``graph``; None: in none, until the block ends."""
    me = get_ident()
    with _lock:
        # The table's entries are swapped, so that ops pay nothing when none is captured.
        recorder = table.bound if isinstance(table.bound, _Recorder) else _Recorder(table)
        outside = recorder.graphs.get(me, _NOWHERE)
        recorder.graphs[me] = graph
        table.bound = recorder
    try:
        yield
    finally:
        with _lock:
            if outside is not _NOWHERE:
                recorder.graphs[me] = outside
            else:
                del recorder.graphs[me]
                if not recorder.graphs:
                    table.bound = table.plain


_lock = threading.Lock()
_NOWHERE: Any = object()


class _Recorder(defaultdict[str, "dict[Key, Callable[..., None]]"]):
    """Table entries that keep calls in the calling thread's graph, and run them."""

    def __init__(self, table: DispatchTable) -> None:
        super().__init__()
        self.table = table
        self.graphs: dict[int, Graph | None] = {}

    def __missing__(self, op: str) -> dict[Key, Callable[..., None]]:
        self[op] = entries = _RecordingOp(self, op)
        return entries


class _RecordingOp(dict["Key", "Callable[..., None]"]):
    def __init__(self, recorder: _Recorder, op: str) -> None:
        super().__init__()
        self.recorder = recorder
        self.op = op

    def __missing__(self, key: Key) -> Callable[..., None]:
        from propolis.ops import catalogue  # noqa: PLC0415  (ops imports tensor)

        spec, table, graphs = catalogue()[self.op], self.recorder.table, self.recorder.graphs
        table.bind(spec, key)  # says now that nobody serves it

        def record(*args: Any, **kwargs: Any) -> None:
            graph = graphs.get(get_ident())
            if graph is None:
                table.bind(spec, key)(*args, **kwargs)
            else:
                graph.run(table, spec, key, args, kwargs)

        self[key] = record
        return record
