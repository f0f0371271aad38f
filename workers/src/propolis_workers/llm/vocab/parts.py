"""What all vocabularies share: the parts of a tokenizer, and what a token's text stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Literal


if TYPE_CHECKING:
    from collections.abc import Mapping

Encode = Callable[[str, bool, bool], list[int]]

# Where `encode` puts a space that is not in the text: nowhere, before the text if no special
# token precedes it, or before each run of text between special tokens.
Prefix = Literal["never", "first", "each"]

# What SentencePiece writes for a space.
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


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


def byte_level(text: str) -> bytes:
    """Return the bytes that a token of a byte-level vocabulary stands for."""
    if any(ord(char) not in CHAR_TO_BYTE for char in text):
        return text.encode()
    return bytes(CHAR_TO_BYTE[ord(char)] for char in text)


def spaced(text: str) -> bytes:
    """Return the bytes that a token of a SentencePiece vocabulary stands for."""
    return text.replace(SPACE, " ").encode()


def byte_text(byte: int) -> str:
    """Return the text of the token that stands for one byte in a SentencePiece vocabulary."""
    return f"<0x{byte:02X}>"


BYTE_TEXTS = {byte_text(byte): bytes([byte]) for byte in range(256)}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All a tokenizer is made of, whichever file it came from."""

    encode: Encode
    texts: Mapping[int, str] | list[str]
    vocab_size: int
    cut_ids: frozenset[int]  # matched in the text as they stand: it is cut at them
    verbatim_ids: frozenset[int]  # whose text is the text, whatever `read` makes of others
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    tool_template: str | None = None  # for conversations with tools, where it is another
    longest: int = 0  # the most characters of text that one token stands for; 0: not known
    read: Callable[[str], bytes] = byte_level  # the bytes of a token's text
    prefix: Prefix = "never"
    pieces: dict[int, bytes] = field(default_factory=dict)  # the bytes known so far


__all__ = [
    "BYTE_TEXTS",
    "CHAR_TO_BYTE",
    "SPACE",
    "Encode",
    "Parts",
    "Prefix",
    "byte_level",
    "byte_text",
    "spaced",
]
