"""
The steps of a batch: computed, captured where their like comes again, and replayed.

One in which each sequence has one token is captured once for each size of a ladder.  One that has a
part of a prompt is as its like comes for the fourth time: of the pieces of long prompts, which are
as many tokens each, where the device has a queue and room for them (see chunks.py); where it has
none, of short prompts, and what is left of longer ones, as a step of a few more sequences and rows,
which are nobody's.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis.dispatch.capture import capture
from propolis.errors import OutOfMemoryError
from propolis_workers.llm.batch.paged_cache import NOBODYS
from propolis_workers.llm.batch.paged_cache import Placed
from propolis_workers.llm.batch.paged_cache import Step
from propolis_workers.llm.chunks import CAPTURED
from propolis_workers.llm.chunks import SHARE
from propolis_workers.llm.chunks import has_queue
from propolis_workers.llm.memory import captured_bytes
from propolis_workers.llm.rows import Rows


if TYPE_CHECKING:
    from propolis import Device
    from propolis.dispatch.capture import Graph
    from propolis_workers.llm.batch.paged_cache import PagedCache
    from propolis_workers.llm.chunks import Pieces
    from propolis_workers.llm.session import LLM

SHORT: Final = 128
"""Rows of a step, up to which its calls cost about as much to launch as those that fill it up."""

KEPT: Final = 16
"""Captured steps with short prompts: the one that was used the longest ago makes room."""


class Captured(NamedTuple):
    """
    A step, and what computes it.

    Attributes:
        step: says what it computes.
        graph: computes it.
        rows: the logits.
    """

    step: Step
    graph: Graph
    rows: Rows


Kind = tuple[int, int, int]
"""What steps that are alike have in common: sequences, rows, and rows whose logits are wanted."""


def rung(rows: int) -> int:
    """
    The size of the captured step that so many rows go into: few, so that they come again.

    >>> [rung(rows) for rows in (1, 8, 9, 23, 35, 64, 65, 100, 128)]
    [8, 8, 16, 24, 40, 64, 80, 112, 128]
    """
    unit = max(8, (1 << (rows - 1).bit_length()) >> 3)
    return -(-rows // unit) * unit


def _size(sequences: int) -> int:
    return 1 << (sequences - 1).bit_length()


def _room_for_short(llm: LLM, device: Device, most: int) -> bool:
    free = device.guarded(device.memory.available)
    needed = KEPT * captured_bytes(llm.model.config, SHORT, most)
    return free is None or needed <= free * SHARE


class Steps:
    """
    Computes steps on one cache.

    Attributes:
        decodes: captured ones in which each sequence has one token, by how many these are.
        pieces: captured ones with pieces of long prompts, by rows, and what kind each is.
        short: captured ones with short prompts, the one used last at the end.
        shorts: whether there are to be any.
    """

    def __init__(
        self,
        llm: LLM,
        cache: PagedCache,
        *,
        most: int,
        capacity: int,
        blocks: int,
        pieces: Pieces,
    ) -> None:
        """
        Compute nothing yet.

        Args:
            llm: the model.
            cache: where keys and values are.
            most: sequences of a step.
            capacity: tokens that a sequence may have.
            blocks: that a sequence may have.
            pieces: of long prompts.
        """
        self._llm = llm
        self._cache = cache
        self._blocks = blocks
        self._rope = llm.model.rope.reserve(capacity)
        self.decodes: dict[int, Captured] = {}
        self.pieces: dict[int, tuple[Kind, Captured]] = {}
        self.short: dict[Kind, Captured] = {}
        self._in_a_row: dict[int, tuple[Kind, int]] = {}
        self._came: Counter[Kind] = Counter()
        self._sizes = set(pieces.sizes) if pieces.captured else set()
        # A queue is filled while the device computes: there nothing was gained.
        self.shorts = not has_queue(cache.device) and _room_for_short(llm, cache.device, most)

    def captured(self, sequences: int) -> Captured | None:
        """The step that computes one token of each of so many; None before they came."""
        return self.decodes.get(_size(sequences))

    def decode(self, parts: list[Placed]) -> Rows:
        """Of a step in which each sequence has one token."""
        size = _size(len(parts))
        known = self.captured(len(parts))
        if known is not None:
            known.step.set(parts)
            known.graph.replay()
            return known.rows
        step = self._step(size, size)
        step.set(parts)
        with capture(self._cache.device) as graph:  # it runs: this step is done
            rows = self._computed(step)
        self.decodes[size] = Captured(step, graph, rows)
        return rows

    def mixed(self, parts: list[Placed], rows: int, ends: list[int]) -> Rows:
        """
        Of a step that has prompts too.

        Args:
            parts: of each sequence.
            rows: their tokens.
            ends: the rows whose logits are wanted.
        """
        if rows in self._sizes:
            return self._piece(parts, rows, ends)
        if rows <= SHORT and self.shorts:
            size = _size(len(parts))
            if len(ends) <= size:
                return self._short(parts, rows, ends, size)
        return self._computed(self._told(parts, rows, ends))

    def _piece(self, parts: list[Placed], rows: int, ends: list[int]) -> Rows:
        kind = len(parts), rows, len(ends)
        before, known = self.pieces.get(rows, (None, None))
        if known is not None and before == kind:
            return self._replayed(known, parts, ends)
        step = self._told(parts, rows, ends)
        last, times = self._in_a_row.get(rows, (kind, 0))
        times = times + 1 if last == kind else 1
        self._in_a_row[rows] = kind, times
        if times < CAPTURED:
            return self._computed(step)
        if known is not None:
            known.graph.close()
            del self.pieces[rows]
        captured = self._captured(step)
        if captured is None:
            self._sizes.discard(rows)
            return self._computed(step)
        self.pieces[rows] = kind, captured
        return captured.rows

    def _short(self, parts: list[Placed], rows: int, ends: list[int], size: int) -> Rows:
        """As a step of ``size`` sequences and one of nobody's, which has the rows that are more."""
        filled = rung(rows)
        kind = size + 1, filled, size
        known = self.short.pop(kind, None)
        if known is None:
            self._came[kind] += 1
            if self._came[kind] < CAPTURED:
                return self._computed(self._told(parts, rows, ends))
        nobodys = [NOBODYS] * -(-(filled - rows) // self._cache.size)
        parts = [*parts, Placed([0] * (filled - rows), 0, nobodys, local=nobodys)]
        ends = [*ends, *ends[:1] * (size - len(ends))]
        if known is not None:
            self.short[kind] = known
            return self._replayed(known, parts, ends)
        if len(self.short) == KEPT:
            oldest = next(iter(self.short))
            self.short.pop(oldest).graph.close()
            self._came[oldest] = 0  # so that those that are rare do not chase each other out
        step = self._step(size + 1, filled, wanted=size)
        step.set(parts)
        step.want(ends)
        known = self._captured(step)
        if known is None:
            self.shorts = False
            for other in self.short.values():
                other.graph.close()
            self.short.clear()
            return self._computed(step)
        self.short[kind] = known
        return known.rows

    def _replayed(self, known: Captured, parts: list[Placed], ends: list[int]) -> Rows:
        known.step.set(parts)
        known.step.want(ends)
        known.graph.replay()
        return known.rows

    def _captured(self, step: Step) -> Captured | None:
        """As :meth:`_computed`, to be replayed; None where there is no memory for that."""
        try:
            with capture(self._cache.device) as graph:
                rows = self._computed(step)
        except OutOfMemoryError:
            return None
        return Captured(step, graph, rows)

    def _computed(self, step: Step) -> Rows:
        logits = self._llm.model(step.ids, step.positions, self._rope, step)
        return Rows(logits, self._llm.tokenizer.vocab_size)

    def _told(self, parts: list[Placed], rows: int, ends: list[int]) -> Step:
        step = self._step(len(parts), rows, wanted=len(ends))
        step.set(parts)
        step.want(ends)
        return step

    def _step(self, sequences: int, rows: int, *, wanted: int | None = None) -> Step:
        return Step(self._cache, sequences, rows, self._blocks, wanted=wanted)


__all__ = ["KEPT", "SHORT", "Captured", "Steps", "rung"]
