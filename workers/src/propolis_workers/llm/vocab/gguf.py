"""The vocabulary that a GGUF file describes, by llama.cpp's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.vocab.byte_level import byte_level_bpe
from propolis_workers.llm.vocab.fields import id_of
from propolis_workers.llm.vocab.fields import tokens_of
from propolis_workers.llm.vocab.fields import types_of
from propolis_workers.llm.vocab.fields import value_of
from propolis_workers.llm.vocab.parts import Parts
from propolis_workers.llm.vocab.raw_bpe import raw_bpe
from propolis_workers.llm.vocab.sentence_piece import sentence_piece_bpe
from propolis_workers.llm.vocab.special import USER_DEFINED
from propolis_workers.llm.vocab.special import Cutter
from propolis_workers.llm.vocab.special import special_of
from propolis_workers.llm.vocab.unigram import unigram


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.llm.vocab.family import Family

_MODELS = {
    "gemma4": "BPE with tokens for bytes",
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece BPE",
    "t5": "SentencePiece unigram",
}


def gguf_parts(metadata: Mapping[str, object]) -> Parts:
    """
    Check a GGUF file's vocabulary and assemble its tokenizer.

    Args:
        metadata: The file's key-value pairs.

    Returns:
        What a `Tokenizer` is made of.

    Raises:
        ModelError: The vocabulary is missing, damaged or of a kind not supported.
    """
    model = value_of(metadata, "tokenizer.ggml.model", str)
    if model is None:
        raise ModelError("the file has no tokenizer: tokenizer.ggml.model is missing")
    if model not in _MODELS:
        supported = ", ".join(f"{name!r} ({kind})" for name, kind in _MODELS.items())
        msg = f"tokenizer model {model!r} is not supported; supported: {supported}"
        raise UnsupportedModelError(msg)
    tokens = tokens_of(metadata)
    types = types_of(metadata, len(tokens))
    special = special_of(metadata, tokens, types)
    if model == "gpt2":
        family = byte_level_bpe(metadata, tokens, types)
    elif model == "gemma4":
        family = raw_bpe(metadata, tokens, types)
    else:
        build = sentence_piece_bpe if model == "llama" else unigram
        family = build(metadata, tokens, types, special.kinds)

    prefix, suffix, bos, eos = _affixes(metadata, family, len(tokens))
    cutter = Cutter(tokens, special)

    def encode(text: str, parse_special: bool, add_special: bool) -> list[int]:
        output = list(prefix) if add_special else []
        for part in cutter.cut(text, parse_special=parse_special):
            if isinstance(part, int):
                output.append(part)
            else:
                output += family.encode(part)
        return output + list(suffix) if add_special else output

    kinds = special.kinds
    return Parts(
        encode=encode,
        texts=tokens,
        vocab_size=len(tokens),
        cut_ids=frozenset(kinds),
        verbatim_ids=frozenset(kinds),
        special_ids=frozenset(i for i, kind in kinds.items() if kind != USER_DEFINED),
        end_ids=special.ends if eos is None else special.ends | {eos},
        bos_id=bos,
        eos_id=eos,
        chat_template=value_of(metadata, "tokenizer.chat_template", str),
        tool_template=value_of(metadata, "tokenizer.chat_template.tool_use", str),
        longest=max(map(len, tokens)) if family.bounded and not special.strips else 0,
        read=family.read,
        prefix=family.prefix,
        pieces=dict(family.pieces),
    )


def _affixes(
    metadata: Mapping[str, object], family: Family, count: int
) -> tuple[tuple[int, ...], tuple[int, ...], int | None, int | None]:
    """Return what add_special puts at either end, and the ids that are meant for that."""
    for name in ("unknown", "padding"):
        id_of(metadata, name, count)
    ids = {}
    ends: list[tuple[int, ...]] = []
    for name, default, adds in (
        ("bos", family.bos_id, family.adds_bos),
        ("eos", family.eos_id, family.adds_eos),
    ):
        index = id_of(metadata, name, count)
        if index is None and default is not None and default < count:
            index = default
        told = value_of(metadata, f"tokenizer.ggml.add_{name}_token", bool)
        wanted = adds if told is None else told
        if wanted or (name == "bos" and family.insists_on_bos):
            if index is None:
                msg = f"the file wants a {name} token added, "
                msg += f"but has no tokenizer.ggml.{name}_token_id"
                raise FileFormatError(msg)
            ends.append((index,))
        else:
            ends.append(())
        ids[name] = index
    return ends[0], ends[1], ids["bos"], ids["eos"]


__all__ = ["gguf_parts"]
