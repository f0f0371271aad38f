"""The vocabulary that a GGUF file describes, by llama.cpp's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import TypeVar

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.files import shielded
from propolis_workers.llm._vocab import CHAR_TO_BYTE
from propolis_workers.llm._vocab import END_TEXTS
from propolis_workers.llm._vocab import Parts


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence

    from tokenizers import Tokenizer as _Library

_T = TypeVar("_T")

# Facts of each pre-tokenizer: its split expressions, applied one after the other, each
# within the pieces of the one before; whether a piece that is a token as it stands is
# taken unmerged; whether a beginning-of-sequence token is added when the file is silent.
# Contractions are spelled out: (?i:'s) would also match the long s, U+017F.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")
_PRE: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "default": (_DEFAULT, False, False),
    "gpt-2": ((_WORDS,), False, False),
    "phi-2": ((_WORDS,), False, False),
    "smollm": ((r"\p{N}", _WORDS), False, False),
    "starcoder": ((r"\p{N}", _WORDS), False, False),
    "llama-bpe": ((_CL100K % "{1,3}",), True, True),
    "llama3": ((_CL100K % "{1,3}",), True, True),
    "llama-v3": ((_CL100K % "{1,3}",), True, True),
    "qwen2": ((_CL100K % "",), False, False),
    "deepseek-r1-qwen": ((_CL100K % "",), False, False),
}

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# Some converters write "no such token" as -1, which a u32 field turns into this.
_NO_ID = 0xFFFFFFFF


def gguf_parts(metadata: Mapping[str, object]) -> Parts:
    """Check a GGUF file's vocabulary and assemble its tokenizer."""
    model, pre = (_get(metadata, f"tokenizer.ggml.{key}", str) for key in ("model", "pre"))
    if model is None:
        raise ModelError("the file has no tokenizer: tokenizer.ggml.model is missing")
    if model != "gpt2":
        msg = f"tokenizer model {model!r} is not supported; supported: 'gpt2' (byte-level BPE)"
        raise UnsupportedModelError(msg)
    if pre is not None and pre not in _PRE:
        msg = f"pre-tokenizer {pre!r} is not supported; supported: {', '.join(sorted(_PRE))}"
        raise UnsupportedModelError(msg)
    splits, whole_words, default_bos = _PRE[pre or "default"]

    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if "" in tokens:  # as llama.cpp: padding, several of which may be in one file
        tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(tokens)]
    vocab = {text: index for index, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        index = next(index for index, text in enumerate(tokens) if vocab[text] != index)
        msg = f"tokenizer.ggml.tokens: token {index} is there again as {vocab[tokens[index]]}"
        raise FileFormatError(msg)
    # Of a merge that is there twice the first counts, in llama.cpp though not in the library.
    merges = []
    for merge in dict.fromkeys(_strings(metadata, "tokenizer.ggml.merges")):
        left, _, right = merge.partition(" ")
        if not (left and right) or " " in right:
            msg = f"tokenizer.ggml.merges: {merge!r:.80} is not two tokens with one space between"
            raise FileFormatError(msg)
        merges.append((left, right))
    library = shielded("tokenizer.ggml.merges", lambda: _bpe(vocab, merges, splits, whole_words))

    types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or not all(type(item) is int for item in types):
        raise FileFormatError("tokenizer.ggml.token_type is not a list of integers")
    if len(types) != len(tokens):
        msg = f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        raise FileFormatError(msg)
    ends = {vocab[text] for text in END_TEXTS if text in vocab}
    kinds = {index: kind for index, kind in enumerate(types) if _UNKNOWN <= kind <= _USER_DEFINED}
    kinds |= dict.fromkeys(ends, _CONTROL)  # some files call their end of turn a normal token

    ids = {key: _token_id(metadata, key, len(tokens)) for key in ("bos", *_END_KEYS)}
    for key in ("unknown", "padding"):
        _token_id(metadata, key, len(tokens))
    add_bos = _get(metadata, "tokenizer.ggml.add_bos_token", bool)
    prefix = _affix("bos", ids["bos"], wanted=default_bos if add_bos is None else add_bos)
    add_eos = _get(metadata, "tokenizer.ggml.add_eos_token", bool)
    suffix = _affix("eos", ids["eos"], wanted=bool(add_eos))

    # The longest first, each through the whole text before the next: llama.cpp's order.
    matched = sorted(kinds, key=lambda index: (-len(tokens[index].encode()), index))
    always = [(tokens[index], index) for index in matched if kinds[index] == _USER_DEFINED]
    special = [(tokens[index], index) for index in matched]
    dropped = len(tokens)

    def encode(text: str, parse_special: bool, add_special: bool) -> list[int]:
        output = list(prefix) if add_special else []
        for part in _partition(text, special if parse_special else always):
            if isinstance(part, int):
                output.append(part)
            else:
                # Unlike encode, a batch lets other threads run meanwhile.
                (found,) = library.encode_batch_fast([part], add_special_tokens=False)
                output += [index for index in found.ids if index != dropped]
        return output + list(suffix) if add_special else output

    return Parts(
        encode=encode,
        texts=tokens,
        vocab_size=len(tokens),
        verbatim_ids=frozenset(kinds),
        special_ids=frozenset(i for i, kind in kinds.items() if kind != _USER_DEFINED),
        end_ids=frozenset(ends).union(i for key in _END_KEYS if (i := ids[key]) is not None),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        chat_template=_get(metadata, "tokenizer.chat_template", str),
        tool_template=_get(metadata, "tokenizer.chat_template.tool_use", str),
        # A byte that gives no token makes texts of any length short.
        longest=max(map(len, tokens)) if _has_all_bytes(vocab) else 0,
    )


def _bpe(
    vocab: dict[str, int],
    merges: Sequence[tuple[str, str]],
    splits: tuple[str, ...],
    whole_words: bool,
) -> _Library:
    """Build the library's tokenizer, without added tokens."""
    import tokenizers  # noqa: PLC0415  this module must be cheap to import
    from tokenizers import models  # noqa: PLC0415
    from tokenizers import pre_tokenizers  # noqa: PLC0415

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
    steps = [pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in splits]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*steps, alphabet])
    return library


def _has_all_bytes(vocab: Mapping[str, int]) -> bool:
    return all(chr(code) in vocab for code in CHAR_TO_BYTE)


def _partition(text: str, tokens: list[tuple[str, int]]) -> list[str | int]:
    """Cut text at the tokens it spells: each token's id, and the text between."""
    parts: list[str | int] = [text] if text else []
    for token, index in tokens:
        if token not in text:
            continue
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for number, between in enumerate(part.split(token)):
                if number:
                    cut.append(index)
                if between:
                    cut.append(between)
        parts = cut
    return parts


def _get(metadata: Mapping[str, object], key: str, kind: type[_T]) -> _T | None:
    """Return a value of the type it must have, or None where it is missing."""
    value = metadata.get(key)
    if value is None or type(value) is kind:
        return value
    msg = f"{key} is of type {type(value).__name__}, not {kind.__name__}"
    raise FileFormatError(msg)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    """Return a list of strings that must be there."""
    value = metadata.get(key)
    if value is None:
        msg = f"the file has no complete tokenizer: {key} is missing"
        raise ModelError(msg)
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        msg = f"{key} is not a list of strings"
        raise FileFormatError(msg)
    if key.endswith("tokens") and not value:
        msg = f"{key} is empty"
        raise FileFormatError(msg)
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        msg = f"{key} holds lone surrogates; it must be Unicode"
        raise FileFormatError(msg) from None
    return value


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    """Return one of the file's named ids, or None where it names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = _get(metadata, key, int)
    if value is None or value in {-1, _NO_ID}:
        return None
    if not 0 <= value < count:
        msg = f"{key} is {value}, outside the vocabulary of {count} tokens"
        raise FileFormatError(msg)
    return value


def _affix(name: str, index: int | None, *, wanted: bool) -> tuple[int, ...]:
    """Return what add_special puts at one end."""
    if not wanted:
        return ()
    if index is None:
        msg = f"the file wants a {name} token added, but has no tokenizer.ggml.{name}_token_id"
        raise FileFormatError(msg)
    return (index,)


__all__ = ["gguf_parts"]
