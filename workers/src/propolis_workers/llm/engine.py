"""
Run a model over a sequence: prompts in chunks, then one token at a time.

The decode step is captured once and replayed for every token: what changes
(token id, position, length) is data in tensors.  So is the step of a whole chunk of a prompt, where
the device has a queue that its calls would fill too slowly.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from typing import NamedTuple
from typing import cast

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis.dispatch.capture import capture
from propolis.errors import DeviceLostError
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis_workers.llm.answer import longer
from propolis_workers.llm.chunks import Chunks
from propolis_workers.llm.chunks import has_queue
from propolis_workers.llm.chunks import pieces_of
from propolis_workers.llm.drawing import Drawing
from propolis_workers.llm.kv_cache import KVCache
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.rows import Rows


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis.dispatch.capture import Graph
    from propolis_workers.llm.drawing import Chance
    from propolis_workers.llm.drawing import Odds
    from propolis_workers.llm.network.decoder import Decoder
    from propolis_workers.llm.rows import Likely

SHORTER = "give a smaller --context, or ask for fewer tokens"


class _Ahead(NamedTuple):
    """
    A step that was queued before anybody asked for it: of the token that the device found.

    Attributes:
        token: what it appends.
        position: where.
        vocabulary: among how many tokens it looks for the likeliest.
        by: what it draws by; None where it looks for the likeliest.
        found: gives what it finds, once the step is done.
    """

    token: int
    position: int
    vocabulary: int
    by: tuple[Odds, int] | None
    found: Callable[[], list[tuple[int, float]]]


class Engine:
    """
    One sequence on one model.

    Attributes:
        model: the model.
        capacity: tokens that the sequence may have.
        position: tokens it has.
        rope: what turns its queries and keys.
    """

    def __init__(self, model: Decoder, capacity: int | None = None) -> None:
        """
        Begin an empty sequence.

        Args:
            model: the model.
            capacity: tokens to make room for; the model's context when None, and at most.

        Raises:
            ModelError: the capacity is not at least one token.
            OutOfMemoryError: so many tokens take more memory than is free.
        """
        limit = model.config.context_length
        if capacity is not None and capacity < 1:
            msg = f"the context is {capacity}; supported: 1 to {limit} tokens"
            raise ModelError(msg)
        self.model = model
        self.capacity = limit if capacity is None else min(capacity, limit)
        self.position = 0
        device = model.device
        self._queues = has_queue(device)
        needed = sequence_bytes(model.config, self.capacity, device.threads)
        device.expect_room(
            needed,
            f"a context of {self.capacity} tokens",
            SHORTER,
        )
        pieces = pieces_of(model.config, device, self.capacity, needed)
        self._cache = KVCache(model.config, model.device, self.capacity)
        self.rope = model.rope.reserve(self.capacity)
        self._chunks = Chunks(model, self.rope, self._cache, pieces)
        self._id = Tensor.from_numpy(np.zeros((1, 1), np.int64), device)
        self._at = Tensor.from_numpy(np.zeros((1, 1), np.int32), device)
        self._steps: dict[int | None, tuple[Graph, Rows]] = {}
        self._ahead: _Ahead | None = None
        self._drawing = Drawing(device)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values at full length."""
        return self._cache.nbytes

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        """
        Append a prompt.

        Args:
            ids: at least one token.

        Returns:
            (vocab_size,) f32: the logits after its last token.

        Raises:
            ModelError: the sequence would exceed the capacity; nothing is appended.
        """
        return np.array(self._prefilled(ids).numpy()[0, -1])

    def prefill_drawn(
        self, ids: Sequence[int], vocabulary: int, chance: Chance
    ) -> tuple[int, float] | np.ndarray:
        """
        Append a prompt, and let the device draw the token after it.

        Args:
            ids: at least one token.
            vocabulary: how many of the logits are of tokens; what is beyond pads the embedding.
            chance: by what the token is drawn.

        Returns:
            The token, and the likeliest one's logit; what :meth:`prefill` gives where the device
            draws none, or lacks memory.

        Raises:
            ModelError: as for :meth:`prefill`.
        """
        logits = self._prefilled(ids)
        if self._drawing.serves(logits.dtype):
            with suppress(OutOfMemoryError):
                rows = Rows(logits.narrow(1, logits.shape[1] - 1, 1), vocabulary)
                if self._draws(rows, chance):
                    return rows.best([0])[0]
        return np.array(logits.numpy()[0, -1])

    def _prefilled(self, ids: Sequence[int]) -> Tensor:
        """Logits of a prompt that is appended, of its last token at the end."""
        if not ids:
            msg = "the prompt is empty: give at least one token"
            raise ModelError(msg)
        self._check_room(len(ids))
        start = 0
        for size in self._chunks.pieces.of(len(ids)):
            logits = self._append(ids[start : start + size])
            start += size
        return logits

    def logits_of(self, ids: Sequence[int]) -> np.ndarray:
        """
        Append tokens and give the logits after each: (tokens, vocab_size), f32.

        Raises:
            ModelError: the sequence would exceed the capacity.
        """
        self._check_room(len(ids))
        starts = range(0, max(len(ids), 1), CHUNK)
        parts = [self._append(ids[at : at + CHUNK], last_only=False).numpy()[0] for at in starts]
        return np.concatenate(parts)

    def decode(self, token: int) -> np.ndarray:
        """
        Append one token; allocates nothing but the result's copy.

        Returns:
            (vocab_size,) f32: the logits after it.

        Raises:
            ModelError: the sequence is full.
        """
        logits: np.ndarray = self._decoded(token).all([0])[0]
        return logits

    def decode_likeliest(self, token: int, vocabulary: int) -> tuple[int, float]:
        """
        Append one token, and leave the logits where they are.

        Where the device has a queue, the step after it is queued before this one's token is waited
        for: it is likely to be asked for next, and then the device has not been idle.  Where it is
        not, nothing is lost but that step's time: what it appended is written over.

        Args:
            token: what is appended.
            vocabulary: how many of the logits are of tokens; what is beyond pads the embedding.

        Returns:
            The likeliest token after it, the first of several, and its logit.

        Raises:
            ModelError: the sequence is full.
        """
        return cast("tuple[int, float]", self._decode_found(token, vocabulary, None))

    def decode_drawn(self, token: int, vocabulary: int, chance: Chance) -> tuple[int, float] | None:
        """
        As :meth:`decode_likeliest`, of a token that the device draws.

        Args:
            token: what is appended.
            vocabulary: how many of the logits are of tokens; what is beyond pads the embedding.
            chance: by what the next token is drawn.

        Returns:
            The token, and the likeliest one's logit; None where the device draws none, or lacks
            memory: nothing has been appended.

        Raises:
            ModelError: the sequence is full.
        """
        step = self._steps.get(vocabulary)
        if step is not None and not self._drawing.serves(step[1].dtype):
            return None
        return self._decode_found(token, vocabulary, chance)

    def _decode_found(
        self, token: int, vocabulary: int, chance: Chance | None
    ) -> tuple[int, float] | None:
        """The likeliest token, or the one that is drawn; None where the device cannot."""
        ahead, self._ahead = self._ahead, None
        by = None if chance is None else (chance.odds, chance.key)
        if ahead is not None and ahead[:4] == (token, self.position, vocabulary, by):
            found, self.position = ahead.found, self.position + 1
        else:
            rows = self._decoded(token, vocabulary)
            self.position -= 1  # as long as there may be no token
            if not self._draws(rows, chance):
                return None
            self.position += 1
            later = rows.best_later([0])
            if later is None:
                return rows.best([0])[0]
            found = later
        after = None if chance is None else chance.after()
        following = self._queued_ahead(vocabulary, after)
        (best,) = found()
        if following is not None:
            by = None if after is None else (after.odds, after.key)
            self._ahead = _Ahead(best[0], self.position, vocabulary, by, following)
        return best

    def decode_likely(self, token: int, vocabulary: int, count: int, temperature: float) -> Likely:
        """
        Append one token, and leave the logits where they are until they are asked for.

        Args:
            token: what is appended.
            vocabulary: how many of the logits are of tokens; what is beyond pads the embedding.
            count: of how many of the likeliest tokens the logits are wanted.
            temperature: at which all are weighed; 0 where that is not wanted.

        Raises:
            ModelError: the sequence is full.
        """
        (likely,) = self._decoded(token, vocabulary).top([0], count, [temperature])
        return likely

    def _queued_ahead(
        self, vocabulary: int, chance: Chance | None
    ) -> Callable[[], list[tuple[int, float]]] | None:
        """Queue the step of the token that the last one is about to find; None where it cannot."""
        graph, rows = self._steps[vocabulary]
        if self.position >= self.capacity or not (self._queues and graph.is_one_launch()):
            return None
        try:
            self._place()
            graph.replay()
            return rows.best_later([0]) if self._draws(rows, chance) else None
        except DeviceLostError:
            raise
        except PropolisError:  # whoever asks for this step next is told
            return None

    def _draws(self, rows: Rows, chance: Chance | None) -> bool:
        """Queue what draws a token, for the step after it too; whether the device does."""
        if chance is None:
            return True
        if not self._drawing.serves(rows.dtype):
            return False
        drawn = self._drawing.queue(rows, {0: chance.odds}, {0: chance.key})
        if drawn is not None and self._queues:
            ops.assign(self._id, drawn)
        return drawn is not None

    def _place(self) -> None:
        """Say where the next token goes."""
        self._at.assign(np.array([[self.position]], np.int32))
        self._cache.expect(self.position, self.position + 1)

    def _decoded(self, token: int, vocabulary: int | None = None) -> Rows:
        """A step, captured when first wanted: with a search for the likeliest, or without."""
        self._check_room(1)
        self._ahead = None
        self._id.assign(np.array([[token]], np.int64))
        self._place()
        step = self._steps.get(vocabulary)
        if step is None:
            with capture(self.model.device) as graph:  # it runs: this token's step is done
                logits = self.model(self._id, self._at, self.rope, self._cache)
                rows = Rows(logits, vocabulary)
                if self._queues and vocabulary is not None:  # what the step after it appends
                    ops.assign(self._id, rows.at)
            self._steps[vocabulary] = graph, rows
        else:
            graph, rows = step
            graph.replay()
        self.position += 1
        return rows

    def begin(self, capacity: int) -> bool:
        """
        Begin an empty sequence in the same memory, with the step that was captured.

        Args:
            capacity: tokens that it may have.

        Returns:
            Whether there is room for so many, and they are rotated as these are; if not,
            nothing has changed.
        """
        if capacity > self._cache.capacity or not self.model.rope.alike(capacity, self.capacity):
            return False
        self.capacity, self.position, self._ahead = capacity, 0, None
        return True

    def keeps(self, length: int) -> bool:
        """
        Whether the sequence can be cut to so many tokens and go on.

        It can where no layer has a window.  Where one has, all that its next query sees must be
        there still: of a sequence that outgrew what such a layer keeps, only its end is, and cut to
        less it can be begun again, but not gone on with.
        """
        return length >= self.position or self._cache.keeps(length)

    def truncate(self, length: int) -> None:
        """
        Forget every token from ``length`` on; their memory is overwritten later.

        Raises:
            ModelError: the sequence does not keep so little (:meth:`keeps`); nothing has changed.
        """
        if not self.keeps(length):
            msg = (
                f"the sequence cannot be cut to {length} of its {self.position} tokens: layers "
                f"with a window no longer have what they saw there; cut it to 0 and append those "
                f"tokens again"
            )
            raise ModelError(msg)
        self.position, self._ahead = min(self.position, length), None

    def _append(self, ids: Sequence[int], *, last_only: bool = True) -> Tensor:
        start, end = self.position, self.position + len(ids)
        self._ahead = None
        self._cache.expect(start, end)
        given = np.array([ids], np.int64), np.arange(start, end, dtype=np.int32)[None]
        logits = self._chunks.logits(*given) if last_only else None
        if logits is None:
            tokens, positions = (Tensor.from_numpy(one, self.model.device) for one in given)
            logits = self.model(tokens, positions, self.rope, self._cache, last_only=last_only)
        self.position = end
        return logits

    def _check_room(self, tokens: int) -> None:
        if self.position + tokens > self.capacity:
            msg = (
                f"{tokens} more tokens do not fit: {self.position} of {self.capacity} are taken; "
                f"shorten the prompt{longer(self.capacity, self.model.config.context_length)}"
            )
            raise ModelError(msg)
