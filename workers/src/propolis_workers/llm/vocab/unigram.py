"""SentencePiece unigram, of T5 and XLM-RoBERTa: the likeliest sequence of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import FileFormatError
from propolis_workers.files import shielded
from propolis_workers.llm.vocab.charsmap import charsmap_of
from propolis_workers.llm.vocab.family import Family
from propolis_workers.llm.vocab.fields import id_of
from propolis_workers.llm.vocab.fields import scores_of
from propolis_workers.llm.vocab.fields import value_of
from propolis_workers.llm.vocab.library import ids_of
from propolis_workers.llm.vocab.parts import SPACE
from propolis_workers.llm.vocab.parts import spaced
from propolis_workers.llm.vocab.special import NORMAL
from propolis_workers.llm.vocab.special import UNUSED
from propolis_workers.llm.vocab.special import USER_DEFINED


if TYPE_CHECKING:
    from collections.abc import Mapping

_SCORES: Final = "tokenizer.ggml.scores"
_UNKNOWN_ID = 2  # where the file names none


def unigram(
    metadata: Mapping[str, object],
    tokens: list[str],
    types: list[int] | None,
    kinds: Mapping[int, int],
) -> Family:
    """
    Build the family of ``tokenizer.ggml.model`` "t5".

    Args:
        metadata: The file's key-value pairs.
        tokens: The text of each token.
        types: The type of each token, where the file tells.
        kinds: The types of special tokens, corrected.

    Returns:
        The family.

    Raises:
        ModelError: The scores or the map of characters are missing or damaged.
    """
    scores = scores_of(metadata, len(tokens))
    unknown = id_of(metadata, "unknown", len(tokens))
    unknown = _UNKNOWN_ID if unknown is None else unknown
    if unknown >= len(tokens):
        msg = "the file has no tokenizer.ggml.unknown_token_id, and a unigram model needs one"
        raise FileFormatError(msg)
    prefixed = bool(value_of(metadata, "tokenizer.ggml.add_space_prefix", bool))
    merged = bool(value_of(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool))
    replaced = charsmap_of(metadata)
    pieces = _pieces(
        tokens, scores, [kinds.get(i, k) for i, k in enumerate(types or [NORMAL] * len(tokens))]
    )

    from tokenizers import Tokenizer as Library  # noqa: PLC0415  as for byte-level vocabularies
    from tokenizers import models  # noqa: PLC0415

    library = shielded(
        _SCORES,
        lambda: Library(models.Unigram(pieces, unknown, byte_fallback=False)),
    )

    def encode(text: str) -> list[int]:
        text = replaced(text)
        if merged:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            spoken = prefixed and text.strip(" ")
            text = (SPACE if spoken else "") + text.replace(" ", SPACE)
        return ids_of(library, [text], _SCORES)[0]

    return Family(
        encode=encode,
        adds_eos=True,
        eos_id=1,
        read=spaced,
        prefix="each" if prefixed or merged else "never",
        bounded=False,
    )


def _pieces(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, float]]:
    """
    Return what the library calls the vocabulary.

    It would find special tokens in the text, and takes the least of all scores for the
    likelihood of unknown characters, where llama.cpp takes that of normal tokens: so what is
    not to be found gets a text that no normalised text holds, as it has no spaces, and the
    least score.  An unused token that is less likely than that is found by neither: what it
    spells is likelier character by character.
    """
    normal = [score for score, kind in zip(scores, types, strict=True) if kind == NORMAL]
    least = min(normal, default=0.0)
    output = []
    for index, (text, score, kind) in enumerate(zip(tokens, scores, types, strict=True)):
        if kind == USER_DEFINED:
            output.append((text, 0.0))
        elif kind in {NORMAL, UNUSED} and score >= least:
            output.append((text, score))
        else:
            output.append((f" {index}", least))
    return output


__all__ = ["unigram"]
