"""Train a byte-pair tokenizer on captions and write it as CLIP's files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from typing import Final

from tokenizers import Regex
from tokenizers import Tokenizer
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer


if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LENGTH: Final = 32  # tokens of a prompt; the longest caption has 25
END_OF_WORD: Final = "</w>"
START, END = "<|startoftext|>", "<|endoftext|>"
WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def byte_characters() -> list[str]:
    """The printable stand-ins of the 256 bytes, in the order of CLIP's vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(c) for c in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def train_merges(captions: Iterable[str], count: int = 400) -> list[tuple[str, str]]:
    """At most `count` merges, in the order in which they apply."""
    tokenizer = Tokenizer(BPE(end_of_word_suffix=END_OF_WORD))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = BpeTrainer(
        vocab_size=512 + count,
        end_of_word_suffix=END_OF_WORD,
        initial_alphabet=byte_characters(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges][:count]


def write_tokenizer(captions: Iterable[str], folder: Path) -> None:
    """Write vocab.json, merges.txt and the two configs that transformers reads beside them."""
    merges = train_merges(captions)
    characters = byte_characters()
    pieces = [*characters, *(c + END_OF_WORD for c in characters)]
    pieces += [left + right for left, right in merges]
    pieces += [START, END]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    special = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
    config = {
        **special,
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": LENGTH,
        "do_lower_case": True,
        "add_prefix_space": False,
        "errors": "replace",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
