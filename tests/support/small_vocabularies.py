"""Small vocabularies of each kind, in GGUF files that the gguf library writes."""

from __future__ import annotations

import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from propolis_workers.weights.gguf import GGUFFile


SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Each merge by its two parts: the likeliest first.
MERGES = [(SPACE, "t"), ("h", "e"), (f"{SPACE}t", "he"), ("a", "a"), ("1", "2"), ("é", "e")]
MERGES += [(SPACE, SPACE), ("aa", "aa"), ("\n", "\n")]
CHARACTERS = [SPACE, *"abehitnx12é\n"]
UNIONS = [left + right for left, right in MERGES]

PRECOMPOSED = {"e\u0301": "é", "ﬁ": "fi", "\u3000": " ", "\t": " ", "\n": " ", "\u200b": ""}


def sentence_piece(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a SentencePiece BPE vocabulary; None removes a key."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *UNIONS, *CHARACTERS, "<user>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    types += [NORMAL] * (len(UNIONS) + len(CHARACTERS)) + [USER_DEFINED]
    scores = [0.0] * 259 + [float(-n) for n in range(len(tokens) - 259)]
    return _read(
        {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores} | changes
    )


def raw(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a vocabulary as Gemma 4's; None removes a key."""
    tokens = ["<bos>", "<eos>", *BYTES, *CHARACTERS, *UNIONS, "\n\n\n", "<user>"]
    types = [CONTROL, CONTROL, *[BYTE] * 256]
    types += [NORMAL] * (len(UNIONS) + len(CHARACTERS) + 1) + [USER_DEFINED]
    merges = [" ".join(merge) for merge in MERGES]
    values = {"model": "gemma4", "tokens": tokens, "token_type": types, "merges": merges}
    return _read(values | {"bos_token_id": 0, "eos_token_id": 1} | changes)


def unigram(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a SentencePiece unigram vocabulary; None removes a key."""
    words = {SPACE: -3.0, f"{SPACE}the": -2.5, "he": -4.0, "th": -4.5, "nt": -6.0, "ee": -5.0}
    words |= {char: -5.0 - index / 8 for index, char in enumerate("abehitnfé12")}
    tokens = ["<pad>", "</s>", "<unk>", *words, "<user>", "[PAD]"]
    scores = [0.0, 0.0, 0.0, *words.values(), -1.0, -10_000.0]
    types = [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(words), USER_DEFINED, UNUSED]
    values = {"model": "t5", "tokens": tokens, "token_type": types, "scores": scores}
    values |= {"add_space_prefix": True, "remove_extra_whitespaces": True}
    return _read(values | {"precompiled_charsmap": charsmap(PRECOMPOSED)} | changes)


def charsmap(table: dict[str, str]) -> np.ndarray:
    """Return the double array, and the texts behind it, that replace each key by its value."""
    trie: dict[int, Any] = {}
    texts = b""
    for key, value in table.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = len(texts)
        texts += value.encode() + b"\0"
    units = [0] * 1024
    taken = {0}
    bases = set()  # of one node each: its children are known by their labels alone

    def place(node: dict[int, Any], at: int) -> None:
        labels = [max(byte, 0) for byte in node]
        base = next(
            base
            for base in range(1, 1000)
            if base not in bases and not taken & {base ^ label for label in labels}
        )
        bases.add(base)
        taken.update(base ^ label for label in labels)
        units[at] |= ((at ^ base) << 10) | (0x100 if -1 in node else 0)
        for byte, inner in node.items():
            if byte < 0:
                units[base] = inner | 1 << 31
            else:
                units[base ^ byte] |= byte
                place(inner, base ^ byte)

    place(trie, 0)
    blob = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts
    return np.frombuffer(blob, np.uint8)


def library_of_merges(vocab: list[str]) -> Any:
    """Return the library's own tokenizer for the merges: each union has one way to be made."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    ids = {text: index for index, text in enumerate(vocab)}
    return Library(models.BPE(ids, MERGES, byte_fallback=True))


def _read(values: dict[str, Any]) -> dict[str, Any]:
    """Return what the file says once it was written and read."""
    return dict(_written(tuple((key, _frozen(value)) for key, value in values.items())))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | np.ndarray) else value


@cache
def _written(values: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in values:
            _add(writer, f"tokenizer.ggml.{key}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return dict(GGUFFile.open(path).metadata)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, tuple):
        value = np.array(value, np.uint8) if key.endswith("charsmap") else list(value)
        writer.add_array(key, value.tobytes() if isinstance(value, np.ndarray) else value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_float32(key, value)
