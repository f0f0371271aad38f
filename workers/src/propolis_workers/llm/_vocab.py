"""What all vocabularies share: the byte alphabet, the texts that end a generation, the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

Encode = Callable[[str, bool, bool], list[int]]

# Texts that end a generation wherever a vocabulary has them, as in llama.cpp: files seldom
# name their end of turn.  The last line ends a file in fill-in-the-middle models.
END_TEXTS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>"),
    "<\N{FULLWIDTH VERTICAL LINE}end▁of▁sentence\N{FULLWIDTH VERTICAL LINE}>",
    *("<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>"),
)


def _byte_alphabet() -> dict[int, int]:
    """
    Return the characters that stand for bytes in a byte-level vocabulary.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, are
    the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {byte: byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {0x100 + n: byte for n, byte in enumerate(others)}


CHAR_TO_BYTE = _byte_alphabet()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All a tokenizer is made of, whichever file it came from."""

    encode: Encode
    texts: Mapping[int, str] | list[str]
    vocab_size: int
    verbatim_ids: frozenset[int]  # whose text is the text, not an alphabet of bytes
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    tool_template: str | None = None  # for conversations with tools, where it is another
    longest: int = 0  # the most characters of text that one token stands for; 0: not known
    pieces: dict[int, bytes] = field(default_factory=dict)


__all__ = ["CHAR_TO_BYTE", "END_TEXTS", "Encode", "Parts"]
