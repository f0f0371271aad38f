"""
Text to token ids and back, for byte-level BPE vocabularies.

The merging is the ``tokenizers`` library's; what surrounds it follows llama.cpp, whose
ids are the truth for a GGUF file: the split expressions, which token texts are matched
in the input, and which tokens end a generation.  What differs from llama.cpp, on
purpose: decoding never "cleans up" spaces, so that decode(encode(text)) is the text, and
an id that is outside the vocabulary is an error, not a default.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError


if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Library

_T = TypeVar("_T")
_Encode = Callable[[str, bool, bool], list[int]]

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

# Texts that end a generation wherever a vocabulary has them, as in llama.cpp: files seldom
# name their end of turn.  The last line ends a file in fill-in-the-middle models.
_END_TEXTS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>"),
    "<\N{FULLWIDTH VERTICAL LINE}end▁of▁sentence\N{FULLWIDTH VERTICAL LINE}>",
    *("<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>"),
)
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# What may lie beside tokenizer.json.
_EXTRAS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")

# Some converters write "no such token" as -1, which a u32 field turns into this.
_NO_ID = 0xFFFFFFFF


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


_CHAR_TO_BYTE = _byte_alphabet()


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """All a tokenizer is made of, whichever file it came from."""

    encode: _Encode
    texts: Mapping[int, str] | list[str]
    vocab_size: int
    verbatim_ids: frozenset[int]  # whose text is the text, not an alphabet of bytes
    special_ids: frozenset[int]
    end_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    pieces: dict[int, bytes] = field(default_factory=dict)


class Tokenizer:
    """
    A vocabulary with its rules: built by `from_gguf` or `from_folder`.

    Several threads may use one tokenizer.
    """

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """
        Build the tokenizer that a GGUF file describes.

        Args:
            metadata: The file's key-value pairs; ``tokenizer.*`` is read.

        Returns:
            A tokenizer that gives llama.cpp's ids.

        Raises:
            ModelError: The vocabulary is missing, damaged or of a kind not supported.
        """
        return cls(_gguf_parts(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """
        Build the tokenizer of a folder in the Hugging Face layout.

        Args:
            path: The folder; ``tokenizer.json`` must be in it.

        Returns:
            A tokenizer that gives the ids of the ``tokenizers`` library.

        Raises:
            ModelError: A file is missing, damaged or of a kind not supported.
        """
        return cls(_folder_parts(Path(path)))

    @property
    def vocab_size(self) -> int:
        """The number of ids: all are below it."""
        return self._parts.vocab_size

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence id, where the vocabulary has one."""
        return self._parts.bos_id

    @property
    def eos_id(self) -> int | None:
        """The end-of-sequence id that the file names, where it names one."""
        return self._parts.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """
        The ids that end a generation.

        They are the end-of-sequence token, the end-of-turn and end-of-message tokens that
        the file names, and every token whose text llama.cpp knows to be one, such as
        ``<|im_end|>`` and ``<|eot_id|>``.
        """
        return self._parts.end_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of control and unknown tokens, which are no text."""
        return self._parts.special_ids

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, where the file has one."""
        return self._parts.chat_template

    def encode(
        self, text: str, *, parse_special: bool = True, add_special: bool = False
    ) -> list[int]:
        """
        Turn text into ids.

        Args:
            text: Any text without lone surrogates.
            parse_special: Whether text that spells a control token becomes that token.
                Pass False for text that a stranger wrote.
            add_special: Whether to add the beginning and end tokens that the file asks for.

        Returns:
            The ids.

        Raises:
            UsageError: The text holds a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            msg = f"the text holds a lone surrogate at index {error.start}; text must be Unicode"
            raise UsageError(msg) from None
        return self._parts.encode(text, parse_special, add_special)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """
        Turn ids into text; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: The ids.
            skip_special: Whether control and unknown tokens are left out.

        Returns:
            The text.

        Raises:
            UsageError: An id is not in the vocabulary.
        """
        skipped = self.special_ids if skip_special else frozenset[int]()
        pieces = [self.token_bytes(index) for index in ids if index not in skipped]
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self, index: int) -> bytes:
        """
        Return the bytes that one id stands for; alone they need not be whole characters.

        Args:
            index: The id.

        Returns:
            The bytes; of a control token, its text.

        Raises:
            UsageError: The id is not in the vocabulary.
        """
        parts = self._parts
        piece = parts.pieces.get(index)
        if piece is not None:
            return piece
        if not 0 <= index < parts.vocab_size:
            msg = f"token id {index} is not in the vocabulary: ids are 0 to {parts.vocab_size - 1}"
            raise UsageError(msg)
        # A checkpoint's vocabulary may have holes, which stand for nothing.
        holes = isinstance(parts.texts, Mapping)
        text = parts.texts.get(index, "") if holes else parts.texts[index]  # type: ignore[union-attr]
        if index in parts.verbatim_ids or any(ord(char) not in _CHAR_TO_BYTE for char in text):
            piece = text.encode()
        else:
            piece = bytes(_CHAR_TO_BYTE[ord(char)] for char in text)
        parts.pieces[index] = piece
        return piece


def _shielded(what: str, build: Callable[[], _T]) -> _T:
    """Run what the library builds from a file's content; its failures are the file's."""
    try:
        return build()
    except BaseException as error:
        # Rust panics reach Python outside Exception, and their class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        msg = f"{what} cannot be used: {' '.join(str(error).split())[:300]}"
        raise FileFormatError(msg) from None


def _gguf_parts(metadata: Mapping[str, object]) -> _Parts:
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
    library = _shielded("tokenizer.ggml.merges", lambda: _bpe(vocab, merges, splits, whole_words))

    types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or not all(type(item) is int for item in types):
        raise FileFormatError("tokenizer.ggml.token_type is not a list of integers")
    if len(types) != len(tokens):
        msg = f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        raise FileFormatError(msg)
    ends = {vocab[text] for text in _END_TEXTS if text in vocab}
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
                found = library.encode(part, add_special_tokens=False).ids
                output += [index for index in found if index != dropped]
        return output + list(suffix) if add_special else output

    return _Parts(
        encode=encode,
        texts=tokens,
        vocab_size=len(tokens),
        verbatim_ids=frozenset(kinds),
        special_ids=frozenset(i for i, kind in kinds.items() if kind != _USER_DEFINED),
        end_ids=frozenset(ends).union(i for key in _END_KEYS if (i := ids[key]) is not None),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        chat_template=_get(metadata, "tokenizer.chat_template", str),
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

    if all(chr(code) in vocab for code in _CHAR_TO_BYTE):
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


def _folder_parts(folder: Path) -> _Parts:
    """Read a folder's tokenizer files and assemble its tokenizer."""
    from tokenizers import Tokenizer as Library  # noqa: PLC0415  as in _bpe

    path = folder / "tokenizer.json"
    if not path.is_file():
        found = [name for name in _EXTRAS if (folder / name).is_file()]
        msg = f"{folder} has no tokenizer.json; looked for it, {', '.join(_EXTRAS)}; "
        msg += f"found: {', '.join(found) or 'none of them'}"
        raise ModelError(msg)
    source = _json(path)
    model, decoder = (source.get(key) or {} for key in ("model", "decoder"))
    kinds = [x.get("type") if isinstance(x, dict) else None for x in (model, decoder)]
    if kinds != ["BPE", "ByteLevel"]:
        msg = f"{path}: a {kinds[0]} model with a {kinds[1]} decoder is not supported; "
        msg += "supported: a BPE model with a ByteLevel decoder"
        raise UnsupportedModelError(msg)
    library = _shielded(str(path), lambda: Library.from_str(path.read_text(encoding="utf-8")))
    library.no_truncation()
    library.no_padding()
    added = library.get_added_tokens_decoder()
    vocab = library.get_vocab(with_added_tokens=True)
    texts = {index: text for text, index in vocab.items()}

    config, names, generation = (
        _json(folder / name) if (folder / name).is_file() else {} for name in _EXTRAS
    )
    ends = {vocab[text] for text in _END_TEXTS if text in vocab}
    ids: dict[str, int | None] = {}
    for name in ("bos", "eos"):
        text = names.get(f"{name}_token") or config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if text is not None and (not isinstance(text, str) or text not in vocab):
            msg = f"{folder}: the {name}_token {text!r} is not in the vocabulary"
            raise FileFormatError(msg)
        listed = generation.get(f"{name}_token_id")
        listed = listed if isinstance(listed, list) else [] if listed is None else [listed]
        wrong = [x for x in listed if type(x) is not int or x not in texts]
        if wrong:
            msg = f"{folder / _EXTRAS[2]}: {name}_token_id {wrong[0]!r} is not in the vocabulary"
            raise FileFormatError(msg)
        ids[name] = vocab[text] if text is not None else next(iter(listed), None)
        ends.update(listed if name == "eos" else ())
    ends.update(index for index in (ids["eos"],) if index is not None)

    # Whether special tokens are matched is the library object's state, not an argument.
    lock = threading.Lock()

    def encode(text: str, parse_special: bool, add_special: bool) -> list[int]:
        with lock:
            library.encode_special_tokens = not parse_special
            return library.encode(text, add_special_tokens=add_special).ids

    return _Parts(
        encode=encode,
        texts=texts,
        vocab_size=max(texts, default=-1) + 1,
        verbatim_ids=frozenset(added),
        special_ids=frozenset(i for i, token in added.items() if token.special) | ends,
        end_ids=frozenset(ends),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        chat_template=_folder_template(folder, config),
    )


def _folder_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """Return the chat template of a folder: its own file, else the configuration's."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path)
    found = config.get("chat_template")
    if isinstance(found, list):  # several, each with a name
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        msg = f"{folder / _EXTRAS[0]}: chat_template is of type {type(found).__name__}, not str"
        raise FileFormatError(msg)
    return found


def _text(path: Path) -> str:
    """Read a text file of a model."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as text: {error}"
        raise FileFormatError(msg) from None


def _json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not JSON: {error}"
        raise FileFormatError(msg) from None
    if not isinstance(value, dict):
        msg = f"{path} holds a {type(value).__name__}, not an object"
        raise FileFormatError(msg)
    return value
