"""
Text to token ids and back.

For a GGUF file llama.cpp's ids are the truth: the split expressions, how pieces are merged,
which token texts are matched in the input, and which tokens end a generation.  For a folder
it is the ``tokenizers`` library.  What differs from llama.cpp, on purpose: decoding never
"cleans up" spaces, so that decode(encode(text)) is the text, an id that is outside the
vocabulary is an error, not a default, text never becomes a control token or the token of a
byte by merging, and ``</s>`` ends a generation only where the file calls it special.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import UsageError
from propolis_workers.arguments import expect_ids
from propolis_workers.arguments import expect_unicode
from propolis_workers.llm.vocab.folder import folder_parts
from propolis_workers.llm.vocab.gguf import gguf_parts


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis_workers.llm.vocab.parts import Parts


# A character that no token holds beside others: what follows it is merged without it.
_BEFORE: Final = "\x02"


class Tokenizer:
    """
    A vocabulary with its rules: built by `from_gguf` or `from_folder`.

    Several threads may use one tokenizer.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """
        Build the tokenizer that a GGUF file describes.

        Args:
            metadata: The file's key-value pairs; ``tokenizer.*``, the name and the
                architecture are read.

        Returns:
            A tokenizer that gives llama.cpp's ids.

        Raises:
            ModelError: The vocabulary is missing, damaged or of a kind not supported.
        """
        return cls(gguf_parts(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """
        Build the tokenizer of a folder in the Hugging Face layout.

        Args:
            path: The folder; ``tokenizer.json`` must be in it.

        Returns:
            A tokenizer that gives the ids of the ``tokenizers`` library.

        Raises:
            ModelError: A file is missing, damaged or of a kind not supported.
        """
        return cls(folder_parts(Path(path)))

    @property
    def vocab_size(self) -> int:
        """The number of ids: all are below it."""
        return self._parts.vocab_size

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence id, where the vocabulary has one."""
        return self._parts.bos_id

    @property
    def eos_id(self) -> int | None:
        """The end-of-sequence id that the file names, where it names one."""
        return self._parts.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """
        The ids that end a generation.

        They are the end-of-sequence token, the end-of-turn and end-of-message tokens that
        the file names, and every token whose text llama.cpp knows to be one, such as
        ``<|im_end|>`` and ``<|eot_id|>``.
        """
        return self._parts.end_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of control and unknown tokens, which are no text."""
        return self._parts.special_ids

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, where the file has one."""
        return self._parts.chat_template

    @property
    def tool_template(self) -> str | None:
        """The source of another template for conversations with tools, where the file has one."""
        return self._parts.tool_template

    def fewest(self, text: str) -> int:
        """How many tokens a text has at least; costs nothing, and is often far too few."""
        longest = self._parts.longest
        return -(-len(text) // longest) if longest else 0

    def encode(
        self,
        text: str,
        *,
        parse_special: bool = True,
        add_special: bool = False,
        continues: bool = False,
    ) -> list[int]:
        """
        Turn text into ids.

        Args:
            text: Any text without lone surrogates.
            parse_special: Whether text that spells a control token becomes that token.
                Pass False for text that a stranger wrote.
            add_special: Whether to add the beginning and end tokens that the file asks for.
            continues: Whether the text follows other text: then no space is put before it, as
                many SentencePiece vocabularies do. Such a text has no beginning token.

        Returns:
            The ids.

        Raises:
            UsageError: The text holds a lone surrogate.
            ArgumentTypeError: It is no text.
        """
        expect_unicode("the text", text)
        if not continues or self._parts.prefix == "never":
            return self._parts.encode(text, parse_special, add_special)
        # What puts the space there asks only whether it is at the start.
        before = self._parts.encode(_BEFORE, parse_special, False)
        ids = self._parts.encode(_BEFORE + text, parse_special, False)
        if ids[: len(before)] != before:  # it is a part of some token, or of no text at all
            return self._parts.encode(text, parse_special, False)
        return ids[len(before) :]

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = False, continues: bool = False
    ) -> str:
        """
        Turn ids into text; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: The ids.
            skip_special: Whether control and unknown tokens are left out.
            continues: Whether the ids follow others: then a space at their start is text.
                Else it is taken off where `encode` puts one, as of many SentencePiece
                vocabularies.

        Returns:
            The text.

        Raises:
            UsageError: An id is not in the vocabulary.
            ArgumentTypeError: They are no integers.
        """
        skipped = self.special_ids if skip_special else frozenset[int]()
        prefix = self._parts.prefix
        pieces = []
        starts = prefix != "never" and not continues  # whether what follows has a space before it
        for index in expect_ids(ids):
            piece = b"" if index in skipped else self.token_bytes(index)
            if index in self._parts.cut_ids or index in skipped:
                starts = prefix == "each" or (prefix == "first" and starts and not piece)
            elif starts:
                piece = piece.removeprefix(b" ")
                starts = False
            pieces.append(piece)
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self, index: int) -> bytes:
        """
        Return the bytes that one id stands for; alone they need not be whole characters.

        Args:
            index: The id.

        Returns:
            The bytes; of a control token, its text.

        Raises:
            UsageError: The id is not in the vocabulary.
        """
        parts = self._parts
        piece = parts.pieces.get(index)
        if piece is not None:
            return piece
        if not 0 <= index < parts.vocab_size:
            msg = f"token id {index} is not in the vocabulary: ids are 0 to {parts.vocab_size - 1}"
            raise UsageError(msg)
        # A checkpoint's vocabulary may have holes, which stand for nothing.
        holes = isinstance(parts.texts, Mapping)
        text = parts.texts.get(index, "") if holes else parts.texts[index]  # type: ignore[union-attr]
        piece = text.encode() if index in parts.verbatim_ids else parts.read(text)
        parts.pieces[index] = piece
        return piece
