"""SentencePiece BPE, of Llama 2, Mistral, Gemma and Phi 3: merging by score."""

from __future__ import annotations

import re
from functools import lru_cache
from heapq import heappop
from heapq import heappush
from typing import TYPE_CHECKING

from propolis_workers.llm.vocab.family import Family
from propolis_workers.llm.vocab.family import byte_tokens
from propolis_workers.llm.vocab.fields import scores_of
from propolis_workers.llm.vocab.fields import value_of
from propolis_workers.llm.vocab.parts import SPACE
from propolis_workers.llm.vocab.parts import spaced
from propolis_workers.llm.vocab.special import CONTROL
from propolis_workers.llm.vocab.special import UNKNOWN


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping

# Words up to this length are remembered, so many of them.
_SHORT = 32
_REMEMBERED = 1 << 15


def sentence_piece_bpe(
    metadata: Mapping[str, object],
    tokens: list[str],
    types: list[int] | None,
    kinds: Mapping[int, int],
) -> Family:
    """
    Build the family of ``tokenizer.ggml.model`` "llama".

    Args:
        metadata: The file's key-value pairs.
        tokens: The text of each token.
        types: The type of each token, where the file tells.
        kinds: The types of special tokens, corrected.

    Returns:
        The family.

    Raises:
        ModelError: The scores or the tokens of bytes are missing or damaged.
    """
    scores = scores_of(metadata, len(tokens))
    pieces = byte_tokens(tokens, types)
    prefixed = value_of(metadata, "tokenizer.ggml.add_space_prefix", bool)
    prefixed = True if prefixed is None else prefixed
    # Text that spells a control token, or the token of a byte, is not that token.
    apart = {index for index, kind in kinds.items() if kind in {UNKNOWN, CONTROL}}
    merger = Merger(
        {
            text: (scores[index], index)
            for index, text in enumerate(tokens)
            if index not in apart and index not in pieces
        },
        {byte[0]: index for index, byte in pieces.items()},
    )

    def encode(text: str) -> list[int]:
        return merger.encode((SPACE if prefixed else "") + text.replace(" ", SPACE))

    return Family(
        encode=encode,
        adds_bos=True,
        bos_id=1,
        eos_id=2,
        read=spaced,
        prefix="each" if prefixed else "never",
        pieces=pieces,
    )


class Merger:
    """
    Merges neighbours, the pair first whose union has the highest score, until none is a token.

    Of equal scores the leftmost is first.  The `tokenizers` library cannot do this: it ranks
    pairs, one after the other, where here all pairs with the same union rank the same.

    Args:
        vocab: The score and the id of each text.
        byte_ids: The id of each byte, for characters that are no token.
    """

    def __init__(self, vocab: Mapping[str, tuple[float, int]], byte_ids: Mapping[int, int]) -> None:
        self._vocab = vocab
        self._byte_ids = byte_ids
        self._longest = max(map(len, vocab), default=0)
        self._words = _word_ends(vocab)
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text in which SPACE stands for spaces."""
        output: list[int] = []
        for word in self._words.split(text):
            # What is remembered must be small, whatever strangers send.
            output += self._remembered(word) if len(word) <= _SHORT else self._merge(word)
        return output

    def _merge(self, word: str) -> tuple[int, ...]:
        """Return the ids of a part of a text that no token reaches out of."""
        count = len(word)
        # A piece is known by its first character: where it ends, and where the one before
        # it starts.  A piece that was merged into the one before it ends at 0.
        ends = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            end = ends[right]
            if end - left <= self._longest:
                found = self._vocab.get(word[left:end])
                if found is not None:
                    heappush(queue, (-found[0], left, right, end))

        for right in range(1, count):
            offer(right - 1, right)
        while queue:
            _, left, right, end = heappop(queue)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two has become part of another meanwhile
            ends[left] = end
            ends[right] = 0
            if left:
                offer(before[left], left)
            if end < count:
                before[end] = left
                offer(left, end)
        output: list[int] = []
        start = 0
        while start < count:
            piece = word[start : ends[start]]
            found = self._vocab.get(piece)
            if found is None:
                output += [self._byte_ids[byte] for byte in piece.encode()]
            else:
                output.append(found[1])
            start = ends[start]
        return tuple(output)


def _word_ends(vocab: Iterable[str]) -> re.Pattern[str]:
    """
    Return an expression that matches, between characters, where no token can reach across.

    Of the ends of words these are all, save after characters that a space follows in a token.
    """
    followed = {
        text[at - 1] for text in vocab for at in range(1, len(text)) if text[at] == SPACE
    } | {SPACE}
    return re.compile(f"(?<=[^{''.join(map(re.escape, sorted(followed)))}])(?={SPACE})")


__all__ = ["Merger", "sentence_piece_bpe"]
