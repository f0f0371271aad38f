"""Values of a GGUF file's metadata, checked: what is wrong is an error that names the key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import TypeVar

from propolis.errors import FileFormatError
from propolis.errors import ModelError


if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

# Some converters write "no such token" as -1, which a u32 field turns into this.
_NO_ID = 0xFFFFFFFF


def value_of(metadata: Mapping[str, object], key: str, kind: type[_T]) -> _T | None:
    """
    Return a value of the type it must have, or None where it is missing.

    Raises:
        FileFormatError: It is of another type.
    """
    value = metadata.get(key)
    if value is None or type(value) is kind:
        return value
    msg = f"{key} is of type {type(value).__name__}, not {kind.__name__}"
    raise FileFormatError(msg)


def strings_of(metadata: Mapping[str, object], key: str) -> list[str]:
    """
    Return a list of strings.

    Raises:
        ModelError: It is missing.
        FileFormatError: It is something else, or holds what is not Unicode.
    """
    value = metadata.get(key)
    if value is None:
        msg = f"the file has no complete tokenizer: {key} is missing"
        raise ModelError(msg)
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        msg = f"{key} is not a list of strings"
        raise FileFormatError(msg)
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        msg = f"{key} holds lone surrogates; it must be Unicode"
        raise FileFormatError(msg) from None
    return value


def tokens_of(metadata: Mapping[str, object]) -> list[str]:
    """
    Return the text of each token; all differ.

    Raises:
        ModelError: They are missing.
        FileFormatError: There are none, or one is there twice.
    """
    key = "tokenizer.ggml.tokens"
    tokens = strings_of(metadata, key)
    if not tokens:
        msg = f"{key} is empty"
        raise FileFormatError(msg)
    if "" in tokens:  # as llama.cpp: padding, several of which may be in one file
        tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        last = {text: index for index, text in enumerate(tokens)}
        index = next(index for index, text in enumerate(tokens) if last[text] != index)
        msg = f"{key}: token {index} is there again as {last[tokens[index]]}"
        raise FileFormatError(msg)
    return tokens


def types_of(metadata: Mapping[str, object], count: int) -> list[int] | None:
    """
    Return the type of each token, or None where the file does not tell.

    Raises:
        FileFormatError: They are no integers, or not as many as tokens.
    """
    key = "tokenizer.ggml.token_type"
    types = metadata.get(key)
    if types is None:
        return None
    if not isinstance(types, list) or not all(type(item) is int for item in types):
        msg = f"{key} is not a list of integers"
        raise FileFormatError(msg)
    _check_length(key, types, count)
    return types


def scores_of(metadata: Mapping[str, object], count: int) -> list[float]:
    """
    Return the score of each token.

    Raises:
        ModelError: They are missing.
        FileFormatError: They are no numbers, or not as many as tokens.
    """
    key = "tokenizer.ggml.scores"
    scores = metadata.get(key)
    if scores is None:
        msg = f"the file has no complete tokenizer: {key} is missing"
        raise ModelError(msg)
    if not isinstance(scores, list) or not all(type(item) in {float, int} for item in scores):
        msg = f"{key} is not a list of numbers"
        raise FileFormatError(msg)
    _check_length(key, scores, count)
    if not all(map(math.isfinite, scores)):
        index = next(index for index, score in enumerate(scores) if not math.isfinite(score))
        msg = f"{key}: the score of token {index} is {scores[index]}, not finite"
        raise FileFormatError(msg)
    return scores


def merges_of(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    """
    Return the pairs of tokens that are merged, the first first.

    Raises:
        ModelError: They are missing.
        FileFormatError: One is not two texts.
    """
    key = "tokenizer.ggml.merges"
    merges = []
    # Of a merge that is there twice the first counts, in llama.cpp though not in the library.
    for merge in dict.fromkeys(strings_of(metadata, key)):
        left, _, right = merge.partition(" ")
        if not (left and right) or " " in right:
            msg = f"{key}: {merge!r:.80} is not two tokens with one space between"
            raise FileFormatError(msg)
        merges.append((left, right))
    return merges


def id_of(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    """
    Return one of the file's named ids, or None where it names none.

    Raises:
        FileFormatError: It is no integer, or outside the vocabulary.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = value_of(metadata, key, int)
    if value is None or value in {-1, _NO_ID}:
        return None
    if not 0 <= value < count:
        msg = f"{key} is {value}, outside the vocabulary of {count} tokens"
        raise FileFormatError(msg)
    return value


def _check_length(key: str, values: list[_T], count: int) -> None:
    if len(values) != count:
        msg = f"{key} has {len(values)} entries for {count} tokens"
        raise FileFormatError(msg)


__all__ = [
    "id_of",
    "merges_of",
    "scores_of",
    "strings_of",
    "tokens_of",
    "types_of",
    "value_of",
]
