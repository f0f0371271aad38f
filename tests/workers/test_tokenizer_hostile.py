"""Damaged vocabularies in GGUF files: an error of one line that names the key."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from small_vocabularies import PRECOMPOSED
from small_vocabularies import charsmap
from small_vocabularies import raw
from small_vocabularies import sentence_piece
from small_vocabularies import unigram

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.tokenizer import Tokenizer


BUILDS = {"llama": sentence_piece, "gemma4": raw, "t5": unigram}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 400) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
KEYS = ["tokens", "scores", "token_type", "merges", "precompiled_charsmap", "pre", "model"]
KEYS += ["general.name", "general.architecture", "tokenizer.chat_template", "eot_token_id"]
KEYS += ["add_space_prefix", "bos_token_id", "unknown_token_id", "eos_token_id"]
BLOB = [int(byte) for byte in charsmap(PRECOMPOSED)]


def damaged(build, changes: dict[str, object]) -> dict[str, object]:
    """Return the metadata with other values; None removes a key."""
    named = {
        key if "." in key else f"tokenizer.ggml.{key}": value for key, value in changes.items()
    }
    return {key: value for key, value in (build() | named).items() if value is not None}


@pytest.mark.parametrize(
    ("model", "changes", "error", "match"),
    [
        ("llama", {"scores": None}, ModelError, "no complete tokenizer: .*scores is missing"),
        ("llama", {"scores": [0.0]}, FileFormatError, "scores has 1 entries for 282 tokens"),
        ("llama", {"scores": ["x"] * 282}, FileFormatError, "scores is not a list of numbers"),
        ("llama", {"scores": [True] * 282}, FileFormatError, "scores is not a list of numbers"),
        ("llama", {"scores": [math.nan] * 282}, FileFormatError, "token 0 is nan, not finite"),
        ("llama", {"scores": 5}, FileFormatError, "scores is not a list"),
        ("llama", {"token_type": [1]}, FileFormatError, "token_type has 1 entries for 282"),
        ("llama", {"token_type": [6] * 282}, FileFormatError, "token 0 is of the type of bytes"),
        ("llama", {"bos_token_id": 282}, FileFormatError, "outside the vocabulary of 282"),
        ("llama", {"eot_token_id": 999}, FileFormatError, "eot_token_id is 999, outside"),
        ("llama", {"prefix_token_id": -7}, FileFormatError, "prefix_token_id is -7, outside"),
        ("llama", {"add_space_prefix": 1}, FileFormatError, "type int, not bool"),
        ("gemma4", {"merges": None}, ModelError, "merges is missing"),
        ("gemma4", {"merges": ["t nonsense"]}, FileFormatError, "merges cannot be used"),
        ("gemma4", {"bos_token_id": None}, FileFormatError, "wants a bos token added"),
        ("t5", {"scores": None}, ModelError, "scores is missing"),
        ("t5", {"unknown_token_id": 400}, FileFormatError, "unknown_token_id is 400, outside"),
        ("t5", {"precompiled_charsmap": "x"}, FileFormatError, "not a list of bytes"),
        ("t5", {"precompiled_charsmap": [256]}, FileFormatError, "not a list of bytes"),
        ("t5", {"precompiled_charsmap": [4]}, FileFormatError, "1 bytes names a trie of 4 bytes"),
        ("t5", {"precompiled_charsmap": [0] * 8}, FileFormatError, "names a trie of 0 bytes"),
        ("t5", {"precompiled_charsmap": BLOB[:4100]}, FileFormatError, "cannot be used"),
        ("t5", {"precompiled_charsmap": [255] * 9}, FileFormatError, "9 bytes names a trie"),
        ("bert", {}, UnsupportedModelError, "'bert' is not supported; supported: 'gemma4'.*'t5'"),
    ],
)
def test_damaged(model, changes, error, match):
    """What is wrong is named, with what the file has."""
    build = BUILDS.get(model, sentence_piece)
    with pytest.raises(error, match=match) as caught:
        Tokenizer.from_gguf(damaged(build, {"model": model, **changes}))
    assert "\n" not in str(caught.value)
    assert type(caught.value) is error


@pytest.mark.parametrize("model", ["llama", "gemma4"])
def test_missing_byte(model):
    """A vocabulary without a token for some byte cannot spell every text, and is refused."""
    metadata = BUILDS[model]()
    tokens = ["other" if text == "<0xE2>" else text for text in metadata["tokenizer.ggml.tokens"]]
    with pytest.raises(FileFormatError, match="'<0xE2>' is missing"):
        Tokenizer.from_gguf(damaged(BUILDS[model], {"tokens": tokens, "token_type": None}))


def refusal(metadata: dict[str, object], text: str) -> str:
    """Why a vocabulary cannot be used; nothing when it is.  Other errors are bugs."""
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except ModelError as error:
        return str(error)
    tokenizer.decode(tokenizer.encode(text))
    return ""


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(sorted(BUILDS)),
    st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=2),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
def test_any_values(model, changes, text):
    """Whatever a file says, there is a tokenizer that works or an error of ours of one line."""
    assert "\n" not in refusal(damaged(BUILDS[model], changes), text)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(4, len(BLOB) - 1), st.integers(0, 255)), max_size=6),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_charsmap(changes, text):
    """A damaged trie, be it a circle, ends in an error at load or in some text."""
    blob = list(BLOB)
    for at, byte in changes:
        blob[at] = byte
    metadata = damaged(unigram, {"precompiled_charsmap": blob})
    assert "\n" not in refusal(metadata, text + "e\u0301ﬁ" * 20)
