"""A folder's vocabulary as GGUF metadata: BPE, of bytes or as SentencePiece has it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.files import read_json
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.vocab.parts import BYTE_TEXTS
from propolis_workers.llm.vocab.pre_tokenizers import PRE_TOKENIZERS


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# Names that say what they are are tried before those of one model.
_USUAL: Final = ("llama-bpe", "qwen2", "gpt-2", "smollm", "starcoder", "gpt-4o", "tekken")
# What two ways to split a text before merging differ in, where they do.
_PROBES: Final = (
    "Hello, I'm here; you'RE  not?\n\n  x = 12345 + 67.8\t\n",
    "CamelCase snake_case  HTTPServer's e-mail@host.org/path//to (a)[b]{c}",
    "3 333 33 333333 1234567890 1,000.50 $5 <=> ~|^`",
    "\u00fcber na\u00efve \u0130stanbul e\u0301 \u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093",
    "\ud55c\uad6d\uc5b4 \u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940",
    "  leading\r\n\r\ntrailing  \n \n\t\t tabs   and    spaces ",
    "\U0001f600\U0001f468\u200d\U0001f469 ... --- !!! ?!\n/// '''s 's'T 'll",
)


def vocabulary_of(folder: Path) -> dict[str, Any]:
    """
    What a GGUF file says of a vocabulary.

    Args:
        folder: has ``tokenizer.json``.

    Raises:
        UnsupportedModelError: it is no BPE, or no words of GGUF files give the same tokens.
        ModelError: a file is missing or damaged.
    """
    tokenizer = Tokenizer.from_folder(folder)
    said = read_json(folder / "tokenizer.json")
    model = said["model"]  # read before, and checked
    if model["type"] != "BPE":
        msg = (
            f"{folder}: a vocabulary of kind {model['type']!r}; supported for GGUF: BPE: look for "
        )
        msg += "a GGUF file of this model (`propolis models pull`)"
        raise UnsupportedModelError(msg)
    texts = {index: text for text, index in model["vocab"].items()}
    types = dict.fromkeys(texts, _NORMAL)
    for token in said.get("added_tokens") or ():
        texts[token["id"]] = token["content"]
        types[token["id"]] = _CONTROL if token.get("special") else _USER
    size = max(texts) + 1
    found: dict[str, Any] = {
        "tokenizer.ggml.tokens": [texts.get(index, f"[PAD{index}]") for index in range(size)],
        "tokenizer.ggml.token_type": [types.get(index, _UNUSED) for index in range(size)],
    }
    for name in ("bos", "eos"):
        index = getattr(tokenizer, f"{name}_id")
        if index is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = index
    begun = tokenizer.encode("a", add_special=True)
    found["tokenizer.ggml.add_bos_token"] = begun[:1] == [tokenizer.bos_id]
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    pairs = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
    if _byte_level(said):
        found["tokenizer.ggml.model"] = "gpt2"
        found["tokenizer.ggml.merges"] = [" ".join(pair) for pair in pairs]
        found["tokenizer.ggml.pre"] = _pre_tokenizer(folder, said, tokenizer, found)
        return found
    return _sentence_piece(folder, said, tokenizer, found, ["".join(pair) for pair in pairs])


def padded(said: dict[str, Any], rows: int) -> dict[str, Any]:
    """
    A vocabulary with as many tokens as an embedding has rows.

    Args:
        said: as :func:`vocabulary_of` gives it.
        rows: of the embedding, some of which may have no token.

    Raises:
        ModelError: there are fewer rows than tokens.
    """
    tokens, types = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    if len(tokens) > rows:
        msg = f"the vocabulary has {len(tokens)} tokens, the embedding {rows} rows: the folder's "
        msg += "files are of several models; get it again"
        raise ModelError(msg)
    more = range(len(tokens), rows)
    return {
        **said,
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{index}]" for index in more)],
        "tokenizer.ggml.token_type": [*types, *(_UNUSED for _ in more)],
    }


def _sentence_piece(
    folder: Path,
    said: dict[str, Any],
    tokenizer: Tokenizer,
    found: dict[str, Any],
    merged: list[str],
) -> dict[str, Any]:
    """
    The rest, of a vocabulary whose merges came of scores: what is merged first has the highest.

    Args:
        folder: for messages.
        said: its ``tokenizer.json``.
        tokenizer: that reads it.
        found: tokens and types, those of the latter that are the usual ones.
        merged: what each merge makes, in order.
    """
    ranks: dict[str, int] = {}
    for rank, text in enumerate(merged):
        ranks.setdefault(text, rank)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    unknown = said["model"].get("unk_token")
    kinds = {**dict.fromkeys(BYTE_TEXTS, _BYTE), unknown: _UNKNOWN}
    found |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [-float(ranks.get(text, len(merged))) for text in tokens],
        "tokenizer.ggml.token_type": [kinds.get(*one) for one in zip(tokens, types, strict=True)],
    }
    wanted = [tokenizer.encode(text) for text in _PROBES]
    for prefixed in (True, False):
        found["tokenizer.ggml.add_space_prefix"] = prefixed
        made = Tokenizer.from_gguf(found)
        if wanted == [made.encode(text) for text in _PROBES]:
            return found
    msg = f"{folder}: the vocabulary of tokenizer.json gives other tokens than a GGUF file's would"
    raise UnsupportedModelError(msg)


def _byte_level(said: dict[str, Any]) -> bool:
    return any(step.get("type") == "ByteLevel" for step in _steps(said.get("pre_tokenizer")))


def _steps(step: Any) -> Iterator[dict[str, Any]]:
    """The parts of a pre-tokenizer, however they are nested."""
    if isinstance(step, dict):
        yield step
        for inner in step.get("pretokenizers") or ():
            yield from _steps(inner)


def _pre_tokenizer(
    folder: Path, said: dict[str, Any], tokenizer: Tokenizer, found: dict[str, Any]
) -> str:
    """
    The name of the rule that splits texts as this vocabulary does.

    Nothing in the folder says it: the names are of GGUF files alone.
    """
    import tokenizers  # noqa: PLC0415  (not for --help)
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    library = tokenizers.Tokenizer.from_str(json.dumps({**said, "added_tokens": []}))
    wanted = [[piece for piece, _ in library.pre_tokenizer.pre_tokenize_str(t)] for t in _PROBES]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = dict.fromkeys(itertools.chain(_USUAL, sorted(PRE_TOKENIZERS)))
    for name in names:
        rule = PRE_TOKENIZERS.get(name)
        if rule is None or rule.whole_words != bool(said["model"].get("ignore_merges")):
            continue
        splits = [
            pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in rule.splits
        ]
        steps = pre_tokenizers.Sequence([*splits, level])
        if wanted == [[piece for piece, _ in steps.pre_tokenize_str(t)] for t in _PROBES]:
            made = Tokenizer.from_gguf({**found, "tokenizer.ggml.pre": name})
            if all(made.encode(text) == tokenizer.encode(text) for text in _PROBES):
                return name
    msg = f"{folder}: tokenizer.json splits texts in a way that no name of GGUF files stands for"
    raise UnsupportedModelError(msg)


__all__ = ["padded", "vocabulary_of"]
