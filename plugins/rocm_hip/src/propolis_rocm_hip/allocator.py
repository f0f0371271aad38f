"""
A caching allocator: the device's memory in large segments, handed out in pieces.

hipMalloc costs tens of microseconds and hipFree waits for the device, so freed pieces
are kept.  All work on a device is queued on one stream, and so a piece may be used
again at once: what reads it next runs after what wrote it last.  Pieces are cut from
the smallest free one that fits and grow together with free neighbours when they come
back, the scheme of most deep-learning frameworks.
"""

from __future__ import annotations

import gc
import threading
import weakref
from bisect import bisect_left
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final
from typing import Protocol

from propolis.errors import OutOfMemoryError


if TYPE_CHECKING:
    from collections.abc import Iterator

KIB: Final = 1024
MIB: Final = 1024 * KIB

ALIGNMENT: Final = 512
"""Every piece begins and ends at a multiple: enough for any vector load."""

_SMALL: Final = 1 * MIB
_SMALL_SEGMENT: Final = 2 * MIB
_MEDIUM: Final = 10 * MIB
_MEDIUM_SEGMENT: Final = 20 * MIB
_LARGE_STEP: Final = 2 * MIB


class Backend(Protocol):
    """Where segments come from."""

    id: str

    @property
    def capturing(self) -> bool:
        """Whether a graph is being captured, so that nothing may be given back."""

    def allocate(self, nbytes: int) -> int:
        """The address of fresh memory; raises OutOfMemoryError."""

    def free(self, ptr: int) -> None:
        """Give a segment back; waits for the work that uses it."""

    def info(self) -> tuple[int, int]:
        """Bytes that are free on the device, and in all."""


@dataclass(slots=True)
class Statistics:
    """
    What an allocator has done.

    Attributes:
        allocated: bytes in use, as they were asked for.
        reserved: bytes taken from the device: in use, rounded up, and cached.
        peak_allocated: the most that was in use at once.
        peak_reserved: the most that was taken at once.
        allocations: pieces handed out so far.
        segments: segments taken from the device so far.
        retries: how often memory ran out and trimming the cache helped.
    """

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    allocations: int = 0
    segments: int = 0
    retries: int = 0


class Block:
    """
    A piece of a segment.

    Attributes:
        ptr: its address.
        size: bytes it takes, a multiple of ``ALIGNMENT``.
        nbytes: bytes that were asked for.
        pool: the pool it returns to.
        before: the piece below it in the segment.
        after: the piece above it.
        used: whether somebody has it, or had it lately; others may not join it then.
    """

    __slots__ = ("after", "before", "nbytes", "pool", "ptr", "size", "used")

    def __init__(self, ptr: int, size: int, pool: _Pool) -> None:
        self.ptr = ptr
        self.size = size
        self.pool = pool
        self.nbytes = 0
        self.before: Block | None = None
        self.after: Block | None = None
        self.used = False


class _Pool:
    """Free pieces of one kind, by size."""

    def __init__(self) -> None:
        self._bins: dict[int, dict[Block, None]] = {}
        self._sizes: list[int] = []

    def add(self, block: Block) -> None:
        found = self._bins.get(block.size)
        if found is None:
            self._bins[block.size] = {block: None}
            insort(self._sizes, block.size)
        else:
            found[block] = None

    def remove(self, block: Block) -> None:
        found = self._bins[block.size]
        del found[block]
        if not found:
            del self._bins[block.size]
            del self._sizes[bisect_left(self._sizes, block.size)]

    def smallest(self, size: int) -> Block | None:
        """The free piece that wastes least, the one freed last among equals."""
        position = bisect_left(self._sizes, size)
        if position == len(self._sizes):
            return None
        return next(reversed(self._bins[self._sizes[position]]))

    def whole_segments(self) -> list[Block]:
        return [b for b in self if b.before is None and b.after is None]

    def __iter__(self) -> Iterator[Block]:
        for found in self._bins.values():
            yield from found


class CachingAllocator:
    """
    Memory of one device, thread-safe.

    ``release`` may be called from ``__del__``, which runs in any thread and in the
    middle of any of these methods: it only queues the block, and takes it back at once
    when nobody is at work.

    Args:
        backend: where segments come from.
        direct: every piece is an allocation of its own, of exactly the size asked for,
            and goes back at once, so that tools which watch memory see each tensor.
    """

    def __init__(self, backend: Backend, *, direct: bool = False) -> None:
        self.direct = direct
        self._backend = backend
        self._lock = threading.Lock()
        self._returned: deque[Block] = deque()
        self._small = _Pool()
        self._large = _Pool()
        # Small pieces that came back, by size: a step asks for the same sizes again, and
        # cutting and joining would cost it more than everything else here.
        self._recent: dict[int, list[Block]] = {}
        self._statistics = Statistics()
        self._segments: set[int] = set()
        # When the last tensor is gone too, or the process ends.
        weakref.finalize(self, _give_back, backend, self._segments)

    def allocate(self, nbytes: int) -> Block:
        """
        A piece of at least ``nbytes`` bytes, aligned to ``ALIGNMENT``.

        Raises:
            OutOfMemoryError: not even after giving back everything cached; names what
                was asked for, what is free, in use and cached.
        """
        with self._lock:
            self._collect()
            block = self._take_direct(nbytes) if self.direct else self._take(nbytes)
            block.nbytes = nbytes
            block.used = True
            statistics = self._statistics
            statistics.allocations += 1
            statistics.allocated += nbytes
            statistics.peak_allocated = max(statistics.peak_allocated, statistics.allocated)
            return block

    def release(self, block: Block) -> None:
        """Take a piece back; what is queued on the device may still use it."""
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def trim(self) -> int:
        """Give all segments that are wholly free back to the device; returns their bytes."""
        with self._lock:
            self._collect()
            return self._trim()

    def statistics(self) -> Statistics:
        """A copy of the figures as they are now."""
        with self._lock:
            self._collect()
            now = self._statistics
            return Statistics(*(getattr(now, name) for name in Statistics.__slots__))

    def reset_peaks(self) -> None:
        """Let the high-water marks start from what is in use now."""
        with self._lock:
            self._collect()
            self._statistics.peak_allocated = self._statistics.allocated
            self._statistics.peak_reserved = self._statistics.reserved

    def _take(self, nbytes: int) -> Block:
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        recent = self._recent.get(size)
        if recent:
            return recent.pop()
        pool = self._small if size <= _SMALL else self._large
        block = pool.smallest(size)
        if block is None and pool is self._small and self._join_recent():
            block = pool.smallest(size)
        if block is None:
            block = self._grow(size, pool, nbytes)
        else:
            pool.remove(block)
        rest = block.size - size
        # What is left of a large piece must be worth keeping: slivers fragment the pool.
        if rest >= (ALIGNMENT if pool is self._small else _SMALL):
            self._split(block, size)
        return block

    def _take_direct(self, nbytes: int) -> Block:
        ptr = self._segment(max(nbytes, 1), nbytes)
        return Block(ptr, max(nbytes, 1), self._large)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.ptr + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        block.pool.add(rest)

    def _grow(self, size: int, pool: _Pool, asked: int) -> Block:
        """A fresh segment as one free piece that is in no pool yet."""
        if size <= _SMALL:
            wanted = _SMALL_SEGMENT
        elif size <= _MEDIUM:
            wanted = _MEDIUM_SEGMENT
        else:
            wanted = -(-size // _LARGE_STEP) * _LARGE_STEP
        try:
            ptr = self._segment(wanted, asked, last=wanted == size)
        except OutOfMemoryError:
            if wanted == size:
                raise
            wanted = size  # memory is short: no more than is needed
            ptr = self._segment(wanted, asked)
        return Block(ptr, wanted, pool)

    def _segment(self, size: int, asked: int, *, last: bool = True) -> int:
        statistics = self._statistics
        try:
            ptr = self._backend.allocate(size)
        except OutOfMemoryError as exc:
            ptr = self._retry(size, asked, exc, last=last)
        self._segments.add(ptr)
        statistics.segments += 1
        statistics.reserved += size
        statistics.peak_reserved = max(statistics.peak_reserved, statistics.reserved)
        return ptr

    def _retry(self, size: int, asked: int, exc: OutOfMemoryError, *, last: bool) -> int:
        """Allocate again, after garbage and cache were given back."""
        if last:
            gc.collect()  # tensors in reference cycles hold memory that nobody can reach
        self._collect()
        if self._trim():
            try:
                ptr = self._backend.allocate(size)
            except OutOfMemoryError as again:
                exc = again
            else:
                self._statistics.retries += 1
                return ptr
        raise OutOfMemoryError(self._shortage(asked, exc)) from exc

    def _shortage(self, asked: int, exc: OutOfMemoryError) -> str:
        free, total = self._backend.info()
        now = self._statistics
        return (
            f"{self._backend.id}: {_bytes(asked)} do not fit: {_bytes(free)} of {_bytes(total)} "
            f"are free, {_bytes(now.allocated)} are in use by tensors here, "
            f"{_bytes(now.reserved - now.allocated)} cached in pieces between them, at most "
            f"{_bytes(now.peak_allocated)} were in use; use a smaller model or context, or end "
            f"what else uses the GPU ({exc})"
        )

    def _collect(self) -> None:
        """Take back what was released.  The lock is held."""
        if self.direct and self._backend.capturing:
            return  # HIP frees nothing while a graph is captured
        while self._returned:
            block = self._returned.popleft()
            self._statistics.allocated -= block.nbytes
            if self.direct:
                self._drop(block)
            elif block.size <= _SMALL:
                self._recent.setdefault(block.size, []).append(block)
            else:
                self._join(block)

    def _join_recent(self) -> bool:
        """Put the pieces that came back into their pool; whether there were any."""
        recent, self._recent = self._recent, {}
        for blocks in recent.values():
            for block in blocks:
                self._join(block)
        return bool(recent)

    def _join(self, block: Block) -> None:
        """Put a piece into its pool, together with its free neighbours."""
        block.used = False
        pool = block.pool
        before, after = block.before, block.after
        if after is not None and not after.used:
            pool.remove(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        if before is not None and not before.used:
            pool.remove(before)
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            block = before
        pool.add(block)

    def _trim(self) -> int:
        self._join_recent()
        freed = 0
        for pool in (self._small, self._large):
            for block in pool.whole_segments():
                pool.remove(block)
                freed += block.size
                self._drop(block)
        return freed

    def _drop(self, block: Block) -> None:
        if block.ptr in self._segments:  # they are gone already where the process is ending
            self._segments.remove(block.ptr)
            self._statistics.reserved -= block.size
            self._backend.free(block.ptr)


def _give_back(backend: Backend, segments: set[int]) -> None:
    while segments:
        backend.free(segments.pop())


def _bytes(count: int) -> str:
    """``1.5 GiB``; below 1 MiB the exact number."""
    if count < MIB:
        return f"{count} bytes"
    gib = count >= KIB * MIB
    return f"{count / (KIB * MIB if gib else MIB):.1f} {'GiB' if gib else 'MiB'}"


__all__ = ["ALIGNMENT", "Backend", "Block", "CachingAllocator", "Statistics"]
