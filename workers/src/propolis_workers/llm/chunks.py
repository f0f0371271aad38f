"""
In which pieces a prompt is computed.

A device with a queue is the faster the more tokens it has at once, and a step whose shapes come
again is captured: so its pieces are a few sizes, as large as its memory has room for.
"""

from __future__ import annotations

from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

import numpy as np

from propolis import Tensor
from propolis.dispatch import DispatchTable
from propolis.dispatch.capture import capture
from propolis.errors import OutOfMemoryError
from propolis.later import numpy_later
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import passing_bytes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Device
    from propolis.dispatch.capture import Graph
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import KVCache
    from propolis_workers.llm.network.decoder import Decoder
    from propolis_workers.llm.network.rotation import Rotations

WIDEST: Final = 2048
"""Tokens of one sequence at once, beyond which hardly any device is faster."""

WIDEST_OF_MANY: Final = 8192
"""Tokens of several: their steps are seldom alike, so that each costs the host its launches."""

CAPTURED: Final = 4
"""How often a step must have come to be captured, which takes as long as several of them."""

SHARE: Final = 1 / 8
"""Of the memory that is free, what captured steps may take."""


class Pieces(NamedTuple):
    """
    Of how many tokens the pieces of a prompt are.

    Attributes:
        sizes: the most first: each half of the one before.
        captured: whether the step of each is captured when it comes again.
    """

    sizes: tuple[int, ...]
    captured: bool

    def of(self, tokens: int) -> Iterator[int]:
        """
        Whole pieces of so many tokens, the largest first, and the rest.

        >>> list(Pieces((1024, 512), captured=True).of(3000))
        [1024, 1024, 512, 440]
        """
        for size in self.sizes:
            while tokens >= size:
                yield size
                tokens -= size
        if tokens:
            yield tokens


def has_queue(device: Device) -> bool:
    """Whether calls are launched now and run later, so that many small ones wait for the host."""
    return numpy_later(Tensor.from_numpy(np.zeros(1, np.int32), device)) is not None


def pieces_of(
    config: ModelConfig,
    device: Device,
    capacity: int,
    needed: int,
    least: int | None = None,
    *,
    sequences: int = 1,
) -> Pieces:
    """
    The pieces that a device has room for.

    Args:
        config: the model's numbers.
        device: where it runs.
        capacity: tokens that a sequence may have.
        needed: bytes that are taken without any that is captured, or wider than ``least``.
        least: tokens of a piece, at least; as many as anywhere when None.
        sequences: whose prompts share a piece, at most.
    """
    least = CHUNK if least is None else least
    free = device.guarded(device.memory.available) if has_queue(device) else None
    if free is None:
        return Pieces((least,), captured=False)

    def fits(sizes: tuple[int, ...]) -> bool:
        # Those that are captured, and the widest that is not.
        rows = sum(sizes) + sizes[0] - least
        wanted = 1 if sequences == 1 else sequences * (len(sizes) + 1)
        more = passing_bytes(config, capacity, rows, wanted=wanted)
        return needed + more <= free and (more <= free * SHARE or sizes == (least,))

    sizes: tuple[int, ...] = (least,)
    # Layers with a window have room for so many beside it.
    most = WIDEST if sequences == 1 else WIDEST_OF_MANY
    widest = 0 if any(config.windows) or least < CHUNK else min(most, capacity * sequences)
    while 2 * sizes[0] <= widest and fits((2 * sizes[0], *sizes)):
        sizes = (2 * sizes[0], *sizes)
    return Pieces(sizes, captured=fits(sizes))


class _Chunk(NamedTuple):
    """
    The captured step of a whole chunk of a prompt.

    Attributes:
        graph: it.
        ids: (1, its size), i64: what is appended.
        positions: (1, its size), i32.
        logits: after the last token.
    """

    graph: Graph
    ids: Tensor
    positions: Tensor
    logits: Tensor


class Chunks:
    """
    Steps of whole pieces of one sequence's prompts, captured as they come again.

    Attributes:
        pieces: of which sizes they are.
        captured: by size.
    """

    def __init__(self, model: Decoder, rope: Rotations, cache: KVCache, pieces: Pieces) -> None:
        self.pieces = pieces
        self.captured: dict[int, _Chunk] = {}
        self._model, self._rope, self._cache = model, rope, cache
        self._came: Counter[int] = Counter()

    def logits(self, ids: np.ndarray, positions: np.ndarray) -> Tensor | None:
        """
        What a step gives that was captured, or is as it comes again; None of others.

        Args:
            ids: (1, tokens), i64: what is appended.
            positions: (1, tokens), i32.
        """
        size = ids.size
        device = self._model.device
        if size not in self.pieces.sizes or DispatchTable.of(device).handlers(get_ident()):
            return None  # who looks at calls is to see them
        self._came[size] += 1
        if size in self.captured:
            graph, *told, logits = self.captured[size]
            for tensor, given in zip(told, (ids, positions), strict=True):
                tensor.assign(given)
            graph.replay()
            return logits
        if not self.pieces.captured or self._came[size] < CAPTURED:
            return None
        first, second = (Tensor.from_numpy(given, device) for given in (ids, positions))
        try:
            with capture(device) as graph:
                logits = self._model(first, second, self._rope, self._cache, last_only=True)
        except OutOfMemoryError:
            self.pieces = self.pieces._replace(captured=False)
            start = int(positions[0, 0])
            self._cache.expect(start, start + size)
            return None
        self.captured[size] = _Chunk(graph, first, second, logits)
        return logits


__all__ = [
    "CAPTURED",
    "SHARE",
    "WIDEST",
    "WIDEST_OF_MANY",
    "Chunks",
    "Pieces",
    "has_queue",
    "pieces_of",
]
