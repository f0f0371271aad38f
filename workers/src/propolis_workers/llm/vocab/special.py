"""Special tokens: which a vocabulary has, and how text is cut at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from propolis_workers.llm.vocab.fields import id_of
from propolis_workers.llm.vocab.fields import value_of


if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Mapping

# The types of tokens in a GGUF file.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Texts that end a generation wherever a vocabulary has them, as in llama.cpp: files seldom
# name their end of turn.
_END_TEXTS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<|calls|>", "<|flush|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>"),
    *("<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "</s>", "<eos>"),
    *("<|tool_response>", "[e~["),
    "<\N{FULLWIDTH VERTICAL LINE}end▁of▁sentence\N{FULLWIDTH VERTICAL LINE}>",
)

# Texts that have a part in filling in the middle where the file names no token for it.  Those
# of the last three end a file, and so a generation.
_INFILL_TEXTS = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
        "<\N{FULLWIDTH VERTICAL LINE}fim▁begin\N{FULLWIDTH VERTICAL LINE}>",
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
        "<\N{FULLWIDTH VERTICAL LINE}fim▁hole\N{FULLWIDTH VERTICAL LINE}>",
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
        "<\N{FULLWIDTH VERTICAL LINE}fim▁end\N{FULLWIDTH VERTICAL LINE}>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_INFILL_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}

_NAMED_ENDS = ("eos", "eot", "eom")

# What C calls space: it is what a stripping token takes with it.
_STRIPPED = " \t\n\v\f\r"


@dataclass(frozen=True, kw_only=True)
class Special:
    """The tokens of a GGUF file that are more than text."""

    kinds: Mapping[int, int]  # unknown, control and user-defined tokens alone
    ends: frozenset[int]
    left: frozenset[int]  # which take the white space before them, and after them
    right: frozenset[int]

    @property
    def strips(self) -> bool:
        """Whether any token takes white space with it."""
        return bool(self.left or self.right)


def special_of(
    metadata: Mapping[str, object], tokens: list[str], types: list[int] | None
) -> Special:
    """
    Find the special tokens of a GGUF file, by its types, its named ids and their texts.

    Raises:
        FileFormatError: A named id is outside the vocabulary.
    """
    vocab = {text: index for index, text in enumerate(tokens)}
    kinds = {
        index: kind for index, kind in enumerate(types or ()) if UNKNOWN <= kind <= USER_DEFINED
    }
    controls = set(_by_text(vocab, kinds))
    ends = {index for name in _NAMED_ENDS if (index := _id(metadata, name, tokens)) is not None}
    ends |= controls
    for name, texts in _INFILL_TEXTS.items():
        index = _id(metadata, name, tokens)
        if index is None and name in _OLD_KEYS:
            index = _id(metadata, _OLD_KEYS[name], tokens)
        if index is None:
            index = next((vocab[text] for text in texts if text in vocab), None)
            controls.update(() if index is None else (index,))
        if index is not None and name in _INFILL_ENDS:
            ends.add(index)
    kinds |= dict.fromkeys(controls, CONTROL)  # some files call their end of turn a normal token
    left, right = _stripping(metadata, vocab, kinds)
    ends -= _thought_ends(vocab)
    return Special(kinds=kinds, ends=frozenset(ends), left=left, right=right)


def ends_among(vocab: Mapping[str, int]) -> set[int]:
    """Return the tokens that end a generation by their text; give those that are special."""
    infill = (text for name in _INFILL_ENDS for text in _INFILL_TEXTS[name])
    ends = {*_by_text(vocab, vocab.values()), *(vocab[text] for text in infill if text in vocab)}
    return ends - _thought_ends(vocab)


def _by_text(vocab: Mapping[str, int], special: Collection[int]) -> list[int]:
    """
    Return the tokens that end a generation by their text.

    What HTML has too does so only where the file calls it special: in Qwen's vocabulary and
    in Gemma's it is a tag as others are.
    """
    found = [vocab[text] for text in _END_TEXTS if text in vocab]
    return [index for index in found if index != vocab.get("</s>") or index in special]


def _thought_ends(vocab: Mapping[str, int]) -> set[int]:
    """Return what by its text ends a generation, but in the company of others a thought."""
    calls = "<|call|>" in vocab or "<|calls|>" in vocab
    channels = calls and ("<|return|>" in vocab or "<|flush|>" in vocab)
    return {vocab["<|end|>"]} if channels and "<|end|>" in vocab else set()


def _id(metadata: Mapping[str, object], name: str, tokens: list[str]) -> int | None:
    return id_of(metadata, name, len(tokens))


def _stripping(
    metadata: Mapping[str, object], vocab: Mapping[str, int], kinds: Mapping[int, int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tokens that strip: no file tells, it is known of models by their names."""
    pre = value_of(metadata, "tokenizer.ggml.pre", str) or ""
    architecture = str(metadata.get("general.architecture"))
    name = str(metadata.get("general.name", "")).lower()
    masked = any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if masked or architecture in {"nomic-bert-moe", "jina-bert-v3"}:
        return frozenset(vocab[text] for text in ("<mask>",) if text in vocab), frozenset()
    if "phi-3" in name or "phi3" in name:
        kept = {vocab[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in vocab}
        return frozenset(), frozenset(kinds) - kept
    if "modern-bert" in name:
        return frozenset(vocab[text] for text in ("[MASK]",) if text in vocab), frozenset()
    return frozenset(), frozenset()


class Cutter:
    """Cuts text at the special tokens that it spells."""

    def __init__(self, tokens: list[str], special: Special) -> None:
        # The longest first, each through the whole text before the next: llama.cpp's order.
        kinds = special.kinds
        matched = sorted(kinds, key=lambda index: (-len(tokens[index].encode()), index))
        self._special = [(tokens[index], index) for index in matched]
        self._always = [pair for pair in self._special if kinds[pair[1]] == USER_DEFINED]
        self._left = special.left
        self._right = special.right

    def cut(self, text: str, *, parse_special: bool) -> list[str | int]:
        """
        Cut text at the tokens it spells.

        Args:
            text: The text.
            parse_special: Whether control and unknown tokens are matched; user-defined
                ones always are.

        Returns:
            Each token's id, and the text between, never two texts side by side.
        """
        taken = bytearray(len(text))  # 1: is of a token, or of the white space that one takes
        found: list[tuple[int, int, int]] = []
        for token, index in self._special if parse_special else self._always:
            at = text.find(token)
            while at >= 0:
                end = at + len(token)
                other = taken.find(1, at, end)
                if other >= 0:  # what starts before that one ends reaches into it too
                    free = taken.find(0, other)
                    at = text.find(token, free) if free >= 0 else -1
                    continue
                begin, end = self._stripped(text, taken, index, at, end)
                taken[begin:end] = bytes([1]) * (end - begin)
                found.append((begin, end, index))
                at = text.find(token, end)
        parts: list[str | int] = []
        start = 0
        for begin, end, index in sorted(found):
            parts += [text[start:begin], index] if start < begin else [index]
            start = end
        return [*parts, text[start:]] if start < len(text) else parts

    def _stripped(
        self, text: str, taken: bytearray, index: int, begin: int, end: int
    ) -> tuple[int, int]:
        """Where a token begins and ends with the white space that it takes."""
        if index in self._left:
            while begin > 0 and text[begin - 1] in _STRIPPED and not taken[begin - 1]:
                begin -= 1
        if index in self._right:
            while end < len(text) and text[end] in _STRIPPED and not taken[end]:
                end += 1
        return begin, end


__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Cutter",
    "Special",
    "ends_among",
    "special_of",
]
