"""BPE on characters as they are, of Gemma 4 and a few more: bytes are for rare ones alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers.files import shielded
from propolis_workers.llm.vocab.family import Family
from propolis_workers.llm.vocab.family import byte_tokens
from propolis_workers.llm.vocab.fields import merges_of
from propolis_workers.llm.vocab.fields import value_of
from propolis_workers.llm.vocab.library import ids_of
from propolis_workers.llm.vocab.parts import SPACE
from propolis_workers.llm.vocab.parts import spaced


if TYPE_CHECKING:
    from collections.abc import Mapping

# Pre-tokenizers whose vocabularies are of this kind, and whether they are Gemma's: a run of
# newlines that is a token is taken unmerged, and a beginning-of-sequence token always added.
RAW = {"gemma4": True, "granite-embed-multi-311m": True, "sarvam-moe": False}

_MERGES: Final = "tokenizer.ggml.merges"
_LINES = re.compile(r"\n+|[^\n]+")


def raw_bpe(metadata: Mapping[str, object], tokens: list[str], types: list[int] | None) -> Family:
    """
    Build the family of ``tokenizer.ggml.model`` "gemma4".

    Raises:
        ModelError: The merges or the tokens of bytes are missing or damaged.
    """
    named = value_of(metadata, "tokenizer.ggml.model", str) == "gemma4"
    pre = "gemma4" if named else value_of(metadata, "tokenizer.ggml.pre", str) or ""
    gemma = RAW[pre]
    vocab = {text: index for index, text in enumerate(tokens)}
    merges = merges_of(metadata)
    pieces = byte_tokens(tokens, types)

    from tokenizers import Tokenizer as Library  # noqa: PLC0415  as for byte-level vocabularies
    from tokenizers import models  # noqa: PLC0415

    library = shielded(_MERGES, lambda: Library(models.BPE(vocab, merges, byte_fallback=True)))

    def encode(text: str) -> list[int]:
        lines = _LINES.findall(text.replace(" ", SPACE))
        whole = [vocab.get(line) if gemma and line[0] == "\n" else None for line in lines]
        merged = [line for line, index in zip(lines, whole, strict=True) if index is None]
        found = iter(ids_of(library, merged, _MERGES))
        output: list[int] = []
        for index in whole:
            output += next(found) if index is None else [index]
        return output

    return Family(encode=encode, insists_on_bos=gemma, read=spaced, pieces=pieces)


__all__ = ["RAW", "raw_bpe"]
