"""
The memory of what a captured step makes and lets go: later calls of the step have it again.

A graph that held every tensor of its step would hold many times what the step needs at once.
So it works on tensors of its own, over storages that it does not hold.  What was
freed by the end of the step is a temporary, with a first and a last call; temporaries whose
calls do not overlap take turns in one block.

A storage is of the step when a call of it writes there first.  What anybody else may have filled
(the host, another device, an implementation's own launch) is read first, and held.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from propolis.released import storage_of
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from propolis.dispatch.call import Call
    from propolis.storage import Storage
    from propolis.tensor import Device


@dataclass(slots=True)
class _Buffer:
    """A storage that was made: which of the graph's tensors are there, from which call to which."""

    storage: weakref.ref[Storage]
    nbytes: int
    first: int = -1
    last: int = -1
    tensors: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Block:
    """Memory, and the calls during which it is taken."""

    storage: Storage
    taken: list[tuple[int, int]] = field(default_factory=list)

    def is_free(self, buffer: _Buffer) -> bool:
        return all(buffer.last < first or last < buffer.first for first, last in self.taken)


class Temporaries:
    """What one step makes, while it is captured; then it does nothing any more."""

    def __init__(self) -> None:
        self._calls = 0
        # By the storage's id, until it is freed.
        self._known: dict[int, _Buffer] = {}
        self._buffers: list[_Buffer] = []
        self._own: list[Tensor] = []  # the graph's tensors that hold storages still

    def made(self, storage: Storage) -> None:
        """Know a storage that was made while the step ran."""
        known, key = self._known, id(storage)
        try:
            reference = weakref.ref(storage, lambda _: known.pop(key, None))
        except TypeError:  # the graph holds it, as all that is not of the step
            return
        known[key] = _Buffer(reference, storage.nbytes)

    def filled(self, storage: Storage) -> None:
        """Leave a storage alone: it has what no call of the step writes."""
        self._known.pop(id(storage), None)

    def own(self, call: Call) -> Call:
        """The call over tensors of the graph's own, where they are of the step."""
        written = {id(tensor.storage) for tensor in call.written}
        for tensor in (*call.outputs, *call.read):
            key = id(storage_of(tensor))
            buffer = self._known.get(key)
            if buffer is None or buffer.first >= 0:
                continue
            if key in written:
                buffer.first = self._calls
                self._buffers.append(buffer)
            else:
                del self._known[key]
        return replace(
            call,
            outputs=tuple(map(self._ours, call.outputs)),
            inputs=tuple(map(self._ours, call.inputs)),
            attributes={name: self._ours(value) for name, value in call.attributes.items()},
        )

    def let_go(self) -> None:
        """Hold the storages of the step no longer: a call ran, with its parts."""
        for tensor in self._own:
            buffer = self._known.get(id(tensor.storage))
            if buffer is not None and buffer.first >= 0:
                buffer.last = self._calls
                buffer.tensors.append(tensor)
                _move(tensor, _NOWHERE)
        self._own.clear()
        self._calls += 1

    def settle(self, device: Device) -> None:
        """
        Give the tensors storages again: those that somebody has, and of what was freed, blocks.

        Raises:
            OutOfMemoryError: the device has too little free memory for them.
        """
        freed = []
        for buffer in self._buffers:
            storage = buffer.storage()
            if storage is None:
                freed.append(buffer)
                continue
            for tensor in buffer.tensors:
                _move(tensor, storage)
        self._known.clear()
        self._buffers.clear()
        blocks: list[_Block] = []
        # The largest first: then none of the blocks there are is too small for the next.
        for buffer in sorted(freed, key=lambda b: b.nbytes, reverse=True):
            if not buffer.tensors:
                continue  # of a call that failed
            block = next((b for b in reversed(blocks) if b.is_free(buffer)), None)
            if block is None:
                block = _Block(device.guarded(device.memory.allocate, buffer.nbytes))
                blocks.append(block)
            block.taken.append((buffer.first, buffer.last))
            for tensor in buffer.tensors:
                _move(tensor, block.storage)

    def _ours(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or id(storage_of(value)) not in self._known:
            return value
        tensor = value.with_prepared({})
        self._own.append(tensor)
        return tensor


class _Nowhere:
    """The storage of what has none until the step ends."""

    nbytes = ptr = 0


_NOWHERE = _Nowhere()


def _move(tensor: Tensor, storage: Storage) -> None:
    tensor.storage = storage
    tensor._array = None  # noqa: SLF001  (the view of the memory before)


__all__ = ["Temporaries"]
