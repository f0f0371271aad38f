"""
A text as one vector, by models that are made for it.

Such a model has a decoder's network; its file says how the states after its last norm become one:
their mean, or that of the last token.  Vectors have length 1, so that a product of two is their
cosine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm.kv_cache import KVCache
from propolis_workers.llm.layers import converted
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import sequence_bytes


if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis_workers.llm.network.decoder import Decoder


class Embedder:
    """Makes vectors, one text at a time, in memory that it keeps."""

    def __init__(self, model: Decoder) -> None:
        """
        Begin.

        Raises:
            UsageError: the model is not made for it.
        """
        if not model.config.pooling:
            msg = "the model writes text and gives no embeddings; take a model made for them"
            raise UsageError(msg)
        self._model = model
        self._cache: KVCache | None = None

    def vector(self, ids: Sequence[int], *, step: int = CHUNK) -> NDArray[np.float32]:
        """
        What :meth:`steps` gives in the end.

        Raises:
            ModelError, OutOfMemoryError: as there.
        """
        steps = self.steps(ids, step=step)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: NDArray[np.float32] = end.value
                return found

    def steps(
        self, ids: Sequence[int], *, step: int = CHUNK
    ) -> Generator[None, None, NDArray[np.float32]]:
        """
        Read a text.

        Args:
            ids: its tokens, at least one, with those that the file begins and ends texts by.
            step: how many are computed between two yields.

        Returns:
            (width,), of length 1.

        Raises:
            ModelError: there is no token, or there are more than the model was made for.
            OutOfMemoryError: so many take more memory than is free.
        """
        model, step = self._model, min(step, CHUNK)
        config = model.config
        if not 0 < len(ids) <= config.context_length:
            msg = f"the text has {len(ids)} tokens; supported: 1 to {config.context_length}"
            raise ModelError(msg)
        cache = self._room(len(ids))
        ropes = model.rope.reserve(len(ids))
        total = np.zeros(config.width, np.float64)
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            end = start + len(some)
            tokens = Tensor.from_numpy(np.array([some], np.int64), model.device)
            at = Tensor.from_numpy(np.arange(start, end, dtype=np.int32)[None], model.device)
            cache.expect(start, end)
            last = config.pooling == "last"
            states = model.states(tokens, at, ropes, cache, last_only=last)
            states = converted(states, dtypes.f32).numpy()[0]
            total = states[-1].astype(np.float64) if last else total + states.sum(0, np.float64)
            yield
        length = np.linalg.norm(total)
        return (total / (length or 1.0)).astype(np.float32)

    def _room(self, tokens: int) -> KVCache:
        """A cache for at least so many, empty."""
        if self._cache is None or self._cache.capacity < tokens:
            self._cache = None  # before another is taken
            config, device = self._model.config, self._model.device
            capacity = min(config.context_length, -(-tokens // CHUNK) * CHUNK)
            device.expect_room(
                sequence_bytes(config, capacity, device.threads),
                f"a text of {tokens} tokens",
                "embed shorter texts",
            )
            self._cache = KVCache(config, device, capacity)
        return self._cache


__all__ = ["Embedder"]
