"""What a family of vocabularies adds to what all GGUF files have in common."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis.errors import FileFormatError
from propolis_workers.llm.vocab.parts import BYTE_TEXTS
from propolis_workers.llm.vocab.parts import byte_level
from propolis_workers.llm.vocab.special import BYTE
from propolis_workers.llm.vocab.special import NORMAL


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_workers.llm.vocab.parts import Prefix


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the text between special tokens becomes ids and ids become text."""

    encode: Callable[[str], list[int]]
    adds_bos: bool = False  # where the file is silent
    adds_eos: bool = False
    insists_on_bos: bool = False  # whatever the file says
    bos_id: int | None = None  # where the file names none
    eos_id: int | None = None
    read: Callable[[str], bytes] = byte_level
    prefix: Prefix = "never"
    bounded: bool = True  # whether each token stands for its own characters at most
    pieces: Mapping[int, bytes] = field(default_factory=dict)  # what `read` cannot know


def byte_tokens(tokens: list[str], types: list[int] | None) -> dict[int, bytes]:
    """
    Return the tokens that stand for one byte each, "<0x00>" to "<0xFF>".

    Raises:
        FileFormatError: One is missing, or a token of that type has another text.
    """
    found = {}
    for index, text in enumerate(tokens):
        kind = types[index] if types else BYTE if text in BYTE_TEXTS else NORMAL
        if text in BYTE_TEXTS:
            found[text] = index
        elif kind == BYTE:
            msg = f"tokenizer.ggml.tokens: token {index} is of the type of bytes, but is "
            msg += f"{text!r:.80}; bytes are '<0x00>' to '<0xFF>'"
            raise FileFormatError(msg)
    missing = [text for text in BYTE_TEXTS if text not in found]
    if missing:
        msg = f"tokenizer.ggml.tokens: {missing[0]!r} is missing; text needs a token for each byte"
        raise FileFormatError(msg)
    return {found[text]: byte for text, byte in BYTE_TEXTS.items()}


__all__ = ["Family", "byte_tokens"]
