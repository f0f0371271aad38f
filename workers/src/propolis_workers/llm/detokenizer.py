"""Text from tokens as they come, never half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis_workers.llm.tokenizer import Tokenizer


class Detokenizer:
    """
    Turns one sequence of tokens into text, token by token.

    A token need not be whole characters: what is incomplete is held back until it is
    complete or turns out to be no UTF-8.  All that `push` and `flush` return, joined, is
    the sequence's bytes decoded at once with errors="replace".
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._skipped = skipped.difference(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, index: int) -> str:
        """
        Take the next token.

        Args:
            index: Its id.

        Returns:
            The characters that it completes; often one, perhaps none.

        Raises:
            UsageError: The id is not in the vocabulary.
        """
        if index in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(index))

    def flush(self) -> str:
        """
        End the sequence; the next `push` starts another.

        Returns:
            U+FFFD where the sequence ended within a character, else nothing.
        """
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
