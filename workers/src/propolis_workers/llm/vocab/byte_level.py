"""Byte-level BPE: text becomes bytes, each a character of an alphabet, and those are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import UnsupportedModelError
from propolis.wording import did_you_mean
from propolis_workers.files import shielded
from propolis_workers.llm.vocab.family import Family
from propolis_workers.llm.vocab.fields import merges_of
from propolis_workers.llm.vocab.fields import value_of
from propolis_workers.llm.vocab.library import ids_of
from propolis_workers.llm.vocab.parts import CHAR_TO_BYTE
from propolis_workers.llm.vocab.pre_tokenizers import PRE_TOKENIZERS
from propolis_workers.llm.vocab.raw_bpe import RAW
from propolis_workers.llm.vocab.raw_bpe import raw_bpe


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence

    from tokenizers import Tokenizer as Library

    from propolis_workers.llm.vocab.pre_tokenizers import PreTokenizer

_MERGES: Final = "tokenizer.ggml.merges"


def byte_level_bpe(
    metadata: Mapping[str, object], tokens: list[str], types: list[int] | None
) -> Family:
    """
    Build the family of ``tokenizer.ggml.model`` "gpt2".

    Raises:
        UnsupportedModelError: The pre-tokenizer is not known.
        ModelError: The merges are missing or damaged.
    """
    pre = value_of(metadata, "tokenizer.ggml.pre", str) or "default"
    if pre in RAW:
        return raw_bpe(metadata, tokens, types)
    if pre not in PRE_TOKENIZERS:
        known = sorted({*PRE_TOKENIZERS, *RAW})
        some = f"supported: {len(known)} of them, such as {', '.join(known[:20])}"
        hint = did_you_mean(str(pre), known, otherwise=some)
        msg = f"pre-tokenizer {pre!r:.60} is not supported; {hint}"
        raise UnsupportedModelError(msg)
    pre_tokenizer = PRE_TOKENIZERS[pre]
    vocab = {text: index for index, text in enumerate(tokens)}
    merges = merges_of(metadata)
    library = shielded(_MERGES, lambda: _library(vocab, merges, pre_tokenizer))
    dropped = len(tokens)

    def encode(text: str) -> list[int]:
        (ids,) = ids_of(library, [text], _MERGES)
        return [index for index in ids if index != dropped]

    return Family(
        encode=encode,
        adds_bos=pre_tokenizer.adds_bos,
        bounded=_has_all_bytes(vocab),  # a byte that gives no token makes texts of any length short
    )


def _library(
    vocab: dict[str, int], merges: Sequence[tuple[str, str]], pre_tokenizer: PreTokenizer
) -> Library:
    """Build the library's tokenizer, without added tokens."""
    import tokenizers  # noqa: PLC0415  this module must be cheap to import
    from tokenizers import models  # noqa: PLC0415
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    whole_words = pre_tokenizer.whole_words
    if _has_all_bytes(vocab):
        model = models.BPE(vocab, merges, ignore_merges=whole_words)
    else:
        # Some vocabularies lack bytes; such a byte gives no id.  Left alone the library
        # would merge its neighbours across the gap, which llama.cpp does not: so the byte
        # becomes an id past the last, which `encode` drops.
        unknown = "\n" * (1 + max(map(len, vocab)))
        model = models.BPE(
            vocab | {unknown: len(vocab)},
            merges,
            unk_token=unknown,
            fuse_unk=False,
            ignore_merges=whole_words,
        )
    library = tokenizers.Tokenizer(model)
    splits = [tokenizers.Regex(split) for split in pre_tokenizer.splits]
    steps = [pre_tokenizers.Split(split, "isolated") for split in splits]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*steps, alphabet])
    return library


def _has_all_bytes(vocab: Mapping[str, int]) -> bool:
    return all(chr(code) in vocab for code in CHAR_TO_BYTE)


__all__ = ["byte_level_bpe"]
