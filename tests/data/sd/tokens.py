"""
A small CLIP vocabulary, and the ids that transformers' CLIPTokenizer gives with it.

``python tests/data/sd/tokens.py`` writes the golden data, ``tokens.json``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path


HERE = Path(__file__).parent

MERGES = ["t h", "th e</w>", "c a", "ca t</w>", "a n</w>", "! !</w>", "' s</w>", "r e", "re d</w>"]
TEXTS = [
    "",
    "the cat",
    "THE  Cat's\n\tred dogs!!",
    "a!b",
    "!",
    "!!!!",
    "cat!",
    "<|endoftext|> the",
    "<|startoftext|>x",
    "<|EndOfText|>",
    "\u00c0\u00c9 \u00e9 \u4e2d\u6587 \U0001f642 \uff11\uff123",
    "a\u0301 \ufb01 \u0130 \u00df",
    "don't  we'll I'D they've",
    "\u00a0\u2003thin\u200bspace",
    "\0 \x7f control",
    "cat " * 74 + "the",
    "cat " * 75 + "the end",
    "thethethe " * 40,
]


def vocabulary() -> dict[str, int]:
    """Bytes, bytes that end a word, merges, and the two special tokens."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    alphabet = [chr(byte if byte in own else next(rest)) for byte in range(256)]
    texts = [*alphabet, *(char + "</w>" for char in alphabet)]
    texts += [merge.replace(" ", "") for merge in MERGES]
    return {text: index for index, text in enumerate([*texts, "<|startoftext|>", "<|endoftext|>"])}


def write_tokenizer(folder: Path, pad: str | None = None) -> Path:
    """The folder of a tokenizer as published models have it."""
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary()), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
    config |= {"pad_token": pad} if pad else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def ids_of_transformers(folder: Path) -> list[list[int]]:
    """What the oracle gives for each text."""
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(folder)
    options = {"padding": "max_length", "max_length": 77, "truncation": True}
    return [tokenizer(text, **options).input_ids for text in TEXTS]


def main() -> None:
    """Write the golden data."""
    golden = {}
    for pad in (None, "!"):
        with tempfile.TemporaryDirectory() as folder:
            golden[pad or "eos"] = ids_of_transformers(write_tokenizer(Path(folder) / "t", pad))
    (HERE / "tokens.json").write_text(json.dumps(golden), encoding="utf-8")


if __name__ == "__main__":
    main()
