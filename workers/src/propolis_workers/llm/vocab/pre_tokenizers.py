"""
How byte-level vocabularies split text before merging, by the names that GGUF files use.

The names, expressions and flags are facts of the models, taken as llama.cpp has them.
Contractions are spelled out: (?i:'s) would also match the long s, U+017F.  Where llama.cpp
puts a vertical tab for white space beyond ASCII before it matches an expression without
categories, the expression here leaves white space out of its ranges.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """
    How text is split, and what goes with it.

    Attributes:
        splits: Expressions, applied one after the other, each within the pieces of the
            one before.
        whole_words: Whether a piece that is a token as it stands is taken unmerged.
        adds_bos: Whether a beginning-of-sequence token is added when the file is silent.
    """

    splits: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_HEAD = r"[^\r\n\p{L}\p{N}]?"  # of a word: a space or one mark
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_MARKS_AND_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NO_CONTRACTIONS = _HEAD + r"\p{L}+|\p{N}" + _MARKS
_QWEN2 = _CONTRACTIONS + "|" + _NO_CONTRACTIONS
_LLAMA3 = _CONTRACTIONS + "|" + _HEAD + r"\p{L}+|\p{N}{1,3}" + _MARKS
_MINICPM5 = _CONTRACTIONS + "|" + _HEAD + r"\p{L}+|\p{N}+" + _MARKS
_QWEN35 = (
    _CONTRACTIONS + "|" + _HEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
)
_SEED_CODER = _CONTRACTIONS + "|" + _HEAD + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|"
    + _HEAD
    + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    _CONTRACTIONS
    + "|"
    + _HEAD
    + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    _CONTRACTIONS
    + "|"
    + _HEAD
    + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    # Within white space there is no line's end ahead: not looked for at each piece of a long one.
    + r"(?<![^\S\r\n])\s*[\r\n]+|"
    + "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s"
)


def _cased(letters: str, ending: str) -> str:
    """
    Words that break before a capital: capitals, then small letters, one of them at least.

    Only the case of ASCII letters is told: others count as both.
    """
    upper, lower = (rf"(?:(?={letters})[^{case}])" for case in ("a-z", "A-Z"))
    return rf"{_HEAD}{upper}*{lower}+{ending}|{_HEAD}{upper}+{lower}*{ending}"


_TEKKEN = _cased(r"\p{L}", "") + r"|\p{N}" + _MARKS_AND_SLASHES
_GPT4O = _cased(r"\p{L}", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _MARKS_AND_SLASHES
_GRANITE = _cased(r"[\p{L}\p{M}]", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _MARKS_AND_SLASHES

_HAN_AND_KANA = r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
_EAST = r"[\u0800-\u9FA5\uAC00-\uD7FF&&\S]+"
_YOUTU = (
    r"[\uAC00-\uD7A3\u3131-\u318E]+|[\u3105-\u312F]+|" + _HAN_AND_KANA + "|"
    r"[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C\u3001-\u303F\uFE30-\uFE4F]+",
    _HEAD + rf"[\p{{L}}\p{{M}}]+{_CONTRACTIONS}?|\p{{N}}" + _MARKS_AND_SLASHES,
)
_DEEPSEEK3 = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_SPARK = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
# The letters that DeepSeek LLM takes for a word: Latin, Greek, Cyrillic, Armenian, Georgian,
# Cherokee, Glagolitic, Coptic and some more of those with two cases.
_CASED_LETTERS = (
    r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF"
    r"\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1"
    r"\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD"
    r"\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D"
    r"\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4"
    r"\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC"
    r"\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128"
    r"\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B"
    r"\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787"
    r"\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    r"\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    r"\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3001-\u3002]+",
    r"(?<!\s)\s++\z",  # tried where white space begins alone: it is long at times
    _EAST,
    r"\p{N}+",
)
_NO_MARKS = r" ?[^\s()|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C]+"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _WORDS,
)

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", "[0-9][0-9][0-9]"))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _WORDS, "[0-9][0-9][0-9]"))
_DIGITS_AND_WORDS = PreTokenizer((r"\p{N}", _WORDS))
_THREES = r"\p{N}{1,3}"


def _literal(expression: str) -> str:
    """Put characters in the place of their escapes, which not every library knows."""
    start = 0
    parts = []
    while (at := expression.find("\\", start)) >= 0:
        width = {"u": 4, "U": 8}.get(expression[at + 1], 0)
        code = expression[at + 2 : at + 2 + width]
        parts += [expression[start:at], chr(int(code, 16)) if width else expression[at : at + 2]]
        start = at + 2 + width
    return "".join([*parts, expression[start:]])


def _named(names: str, pre_tokenizer: PreTokenizer) -> dict[str, PreTokenizer]:
    splits = tuple(map(_literal, pre_tokenizer.splits))
    flags = pre_tokenizer.whole_words, pre_tokenizer.adds_bos
    return dict.fromkeys(names.split(), PreTokenizer(splits, *flags))


PRE_TOKENIZERS = {
    **_named("default", _DEFAULT),
    **_named(
        "gpt-2 phi-2 exaone4 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum "
        "modern-bert jina-es jina-de jina-v1-en jina-v2-code jina-v2-de jina-v2-es roberta-bpe",
        PreTokenizer((_WORDS,)),
    ),
    **_named(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _DIGITS_AND_WORDS
    ),
    **_named(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    ),
    **_named("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    **_named("glm4 glm5", PreTokenizer((_LLAMA3,), whole_words=True)),
    **_named("minicpm5", PreTokenizer((_THREES, _MINICPM5), whole_words=True)),
    **_named(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    **_named("qwen35", PreTokenizer((_QWEN35,))),
    **_named("ufakzeka", PreTokenizer((_NO_CONTRACTIONS,))),
    **_named("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
    **_named("seed-coder", PreTokenizer((_SEED_CODER,))),
    **_named("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    **_named("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
    **_named("jais-2", PreTokenizer((_JAIS2,))),
    **_named("falcon", _FALCON),
    **_named("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    **_named(
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}")),
    ),
    **_named(
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((_THREES, _HAN_AND_KANA, _DEEPSEEK3)),
    ),
    **_named("spark2_5", PreTokenizer((_THREES, _HAN_AND_KANA, _SPARK, r"\p{N}"))),
    **_named("youtu", PreTokenizer(_YOUTU, whole_words=True)),
    **_named("tekken", PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True)),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    **_named("granite-embed-multi-97m", PreTokenizer((_GRANITE,), whole_words=True)),
    **_named("poro-chat bloom gpt3-finnish", PreTokenizer((_NO_MARKS,))),
    **_named("viking", PreTokenizer((_NO_MARKS, r"\p{N}"))),
    **_named("chameleon", PreTokenizer(_CHAMELEON, adds_bos=True)),
}


__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]
