"""Damaged vocabularies in GGUF files: an error of one line that names the key."""

from __future__ import annotations

import json
import math
import time

import pytest
import tokenizers
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from patience import patience
from small_vocabularies import PRECOMPOSED
from small_vocabularies import charsmap
from small_vocabularies import raw
from small_vocabularies import sentence_piece
from small_vocabularies import unigram
from tokenizers import pre_tokenizers

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.vocab.library import ids_of
from propolis_workers.llm.vocab.pre_tokenizers import PRE_TOKENIZERS
from propolis_workers.llm.vocab.special import CONTROL
from propolis_workers.llm.vocab.special import USER_DEFINED
from propolis_workers.llm.vocab.special import Cutter
from propolis_workers.llm.vocab.special import Special


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


def test_encoding_fails(tmp_path):
    """Where the library finds at some text that a vocabulary is none, that names the file."""
    said = {
        "model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None},
        "decoder": {"type": "Metaspace", "replacement": "\N{LOWER ONE EIGHTH BLOCK}"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(said), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(FileFormatError, match=r"tokenizer.json cannot be used: .*unk") as caught:
        tokenizer.encode("other")
    assert "\n" not in str(caught.value)


def test_library_panics():
    """A panic of the library at some text is an error of ours."""

    class PanicException(BaseException):
        """As the one that the library raises, whose class cannot be imported."""

    class Panics:
        def encode_batch_fast(self, *_, **__):
            raise PanicException("index out of\nbounds")

    with pytest.raises(FileFormatError, match=r"^a\.gguf cannot be used: index out of bounds$"):
        ids_of(Panics(), ["x"], "a.gguf")


@pytest.mark.parametrize("name", ["deepseek-llm", "jais-2"])
@pytest.mark.parametrize("end", ["x", "1", "\u4f60"])
def test_long_white_space(name, end):
    """White space of any length is split in a time that grows as the text does."""
    splits = PRE_TOKENIZERS[name].splits
    rule = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in splits]
    )
    text = " " * 400_000 + end
    started = time.process_time()
    pieces = rule.pre_tokenize_str(text)
    assert time.process_time() - started < patience(20)
    assert "".join(piece for piece, _ in pieces) == text


@pytest.mark.slow
def test_many_special_tokens():
    """A text of as many special tokens as there are is cut in a time that grows as it does."""
    names = [f"<unused{number}>" for number in range(6000)]
    kinds = dict.fromkeys(range(len(names)), USER_DEFINED)
    plain = frozenset[int]()
    cutter = Cutter(names, Special(kinds=kinds, ends=plain, left=plain, right=plain))
    wanted = [*range(len(names))] * 10
    started = time.process_time()
    found = cutter.cut("".join(names[index] for index in wanted), parse_special=False)
    assert time.process_time() - started < patience(20)
    assert found == wanted


@pytest.mark.parametrize("strips", [False, True])
@settings(deadline=None, max_examples=300)
@given(st.lists(st.text("ab< ", min_size=1, max_size=4), unique=True), st.text("ab< >\n"))
def test_cutting(strips, names, text):
    """Tokens are cut as llama.cpp does it: the longest through the whole text, then the next."""
    every = frozenset(range(len(names))) if strips else frozenset[int]()
    kinds = dict.fromkeys(range(len(names)), CONTROL)
    cutter = Cutter(names, Special(kinds=kinds, ends=frozenset(), left=every, right=every))
    parts: list[str | int] = [text] if text else []
    for index in sorted(kinds, key=lambda index: (-len(names[index]), index)):
        cut: list[str | int] = []
        for part in parts:
            rest = [part]
            while isinstance(rest[-1], str) and names[index] in rest[-1]:
                before, _, after = rest.pop().partition(names[index])
                around = [before.rstrip(" \n"), index, after.lstrip(" \n")]
                rest += around if strips else [before, index, after]
            cut += [one for one in rest if one != ""]
        parts = cut
    assert cutter.cut(text, parse_special=True) == parts


def test_templates_of_odd_names(tmp_path, tiny_folder):
    """Of several templates, those whose name is no text are not asked for."""
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    named = [{"name": ["x"], "template": "a"}, {"name": {}, "template": "b"}, 5]
    named += [{"name": "default", "template": "c"}]
    said = {"chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).chat_template == "c"


def refusal(metadata: dict[str, object], text: str) -> str:
    """Why a vocabulary cannot be used; nothing when it is.  Other errors are bugs."""
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except ModelError as error:
        return str(error)
    tokenizer.decode(tokenizer.encode(text))
    return ""


@pytest.mark.slow
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
