"""
Record a step once, replay it many times.

While a step is captured, every op runs as usual and its bound call, with the
tensors it was given, is kept.  A replay runs those calls again over the same
memory: no inference, no allocation, no look-up, save within a decomposed op, whose
parts are called anew.  What changes between replays
(token ids, positions) is therefore data in tensors, never Python numbers.

This is the graph of devices that have none of their own.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import DispatchError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.device import Device
    from propolis.dispatch.table import DispatchTable
    from propolis.ops._spec import Key


class Graph:
    """The calls of one captured step, in order."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Run the captured calls again, over the same tensors."""
        for call in self._calls:
            call()

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def capture(device: Device) -> Iterator[Graph]:
    """
    Record every op that runs on ``device`` inside the ``with`` block.

    Views made inside the block are part of the recording as they are; tensors
    allocated inside it live as long as the graph.  Only this thread's ops are kept.

    Raises:
        DispatchError: the device is being captured already.

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
    if table.bound is not table.plain:
        msg = f"capture: {device.id} is being captured already: captures do not nest"
        raise DispatchError(msg)
    graph = Graph()
    # The table's entries are swapped, so that ops pay nothing when none is captured.
    table.bound = _Recording(table, graph)
    try:
        yield graph
    finally:
        table.bound = table.plain


class _Recording(defaultdict[str, "dict[Key, Callable[..., None]]"]):
    """Table entries that run the plain entry and keep the call."""

    def __init__(self, table: DispatchTable, graph: Graph) -> None:
        super().__init__()
        self.table = table
        self.graph = graph
        self.thread = get_ident()
        self.running = False

    def __missing__(self, op: str) -> dict[Key, Callable[..., None]]:
        self[op] = entries = _RecordingOp(self, op)
        return entries


class _RecordingOp(dict["Key", "Callable[..., None]"]):
    def __init__(self, recording: _Recording, op: str) -> None:
        super().__init__()
        self.recording = recording
        self.op = op

    def __missing__(self, key: Key) -> Callable[..., None]:
        from propolis.ops import catalogue  # noqa: PLC0415  (ops imports tensor)

        recording = self.recording
        run = recording.table.bind(catalogue()[self.op], key)
        calls = recording.graph._calls  # noqa: SLF001  (the graph is this module's)

        def record(*args: Any, **kwargs: Any) -> None:
            # What an implementation calls itself (a copy of a strided input) is part
            # of its own call: replaying that repeats it.
            if recording.running or recording.thread != get_ident():
                run(*args, **kwargs)
                return
            recording.running = True
            try:
                run(*args, **kwargs)
            finally:
                recording.running = False
            calls.append(partial(run, *args, **kwargs))

        self[key] = record
        return record
