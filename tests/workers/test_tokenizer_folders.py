"""Folders whose tokenizer.json is of SentencePiece's kind: the tokenizers library is the truth."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import HealthCheck
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from small_vocabularies import BYTES
from small_vocabularies import CHARACTERS
from small_vocabularies import MERGES
from small_vocabularies import SPACE
from small_vocabularies import UNIONS
from tokenizers import AddedToken
from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.tokenizer import Tokenizer


SPELLED = st.sampled_from(["<s>", "</s>", "<end_of_turn>", " ", "  ", " the", "\n\n", "é", "a"])
UNICODE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE))
PLAIN = st.lists(st.sampled_from([" ", " the", "a", "é", "1", "\n"]) | UNICODE).map("".join)
TEXTS = st.lists(SPELLED | UNICODE).map("".join)

TO_SPACE = decoders.Replace(SPACE, " ")
FALLBACK = [TO_SPACE, decoders.ByteFallback(), decoders.Fuse()]
STRIP = decoders.Strip(" ", 1, 0)
FROM_SPACE = normalizers.Replace(" ", SPACE)


def bpe() -> models.BPE:
    """Return a model with tokens for bytes."""
    tokens = ["<unk>", *BYTES, *CHARACTERS, *UNIONS]
    vocab = {text: index for index, text in enumerate(tokens)}
    return models.BPE(vocab, MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True)


def unigram() -> models.Unigram:
    """Return a model without tokens for bytes."""
    words = [(text, -5.0 - index / 8) for index, text in enumerate([*CHARACTERS, f"{SPACE}the"])]
    return models.Unigram([("<unk>", 0.0), *words], 0, byte_fallback=False)


def llama2() -> Library:
    """Llama 2's, Mistral's and Phi 3's kind: a space before each run of text."""
    library = Library(bpe())
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), FROM_SPACE])
    library.decoder = decoders.Sequence([*FALLBACK, STRIP])
    return library


def mistral() -> Library:
    """Mistral's newer kind: a space before the first run alone."""
    library = Library(bpe())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence([*FALLBACK, STRIP])
    return library


def gemma() -> Library:
    """Gemma's kind: no space is added, and runs of them are tokens of their own."""
    library = Library(bpe())
    library.normalizer = FROM_SPACE
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence(FALLBACK)
    library.add_tokens([AddedToken(SPACE * 2, normalized=False)])
    return library


def t5() -> Library:
    """T5's and XLM-RoBERTa's kind: unigram, the white space rewritten."""
    library = Library(unigram())
    library.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return library


KINDS = {build.__name__: build for build in (llama2, mistral, gemma, t5)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that gives the library's tokenizer of a kind and ours of its folder."""

    @cache
    def load(kind):
        folder = tmp_path_factory.mktemp(kind)
        library = KINDS[kind]()
        library.add_special_tokens(["<s>", "</s>", "<end_of_turn>"])
        library.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}', encoding="utf-8")
        return library, Tokenizer.from_folder(folder)

    return load


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(text=TEXTS)
def test_encodes_as_the_library(loaded, kind, text):
    """Ids are the library's, special tokens matched or not."""
    library, ours = loaded(kind)
    for parse_special in (True, False):
        library.encode_special_tokens = not parse_special
        assert library.encode(text).ids == ours.encode(text, parse_special=parse_special)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_decodes_as_the_library(loaded, kind, data):
    """Any ids but halves of characters and special tokens decode as by the library."""
    library, ours = loaded(kind)
    apart = {"<s>", "</s>", "<end_of_turn>", *BYTES}
    plain = [index for text, index in library.get_vocab().items() if text not in apart]
    ids = data.draw(st.lists(st.sampled_from(sorted(plain))))
    assert library.decode(ids) == ours.decode(ids, skip_special=True)


@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma"])
@settings(deadline=None)
@given(text=PLAIN)
@example(text="<s>")
def test_roundtrip(loaded, kind, text):
    """Any text comes back, at once and token by token, where a space is always added or never."""
    ours = loaded(kind)[1]
    ids = ours.encode(text, parse_special=False)
    if kind == "mistral":  # Metaspace adds none where there is one, and decoding takes one off
        text = text.removeprefix(" ")
    assert text == ours.decode(ids)
    detokenizer = Detokenizer(ours)
    shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert text in {shown, shown[1:]}


@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma"])
@settings(deadline=None)
@given(text=PLAIN)
def test_what_goes_on(loaded, kind, text):
    """The tokens of a text that follows another spell it and nothing more."""
    ours = loaded(kind)[1]
    ids = ours.encode(text, parse_special=False, continues=True)
    assert b"".join(map(ours.token_bytes, ids)) == text.encode()


@settings(deadline=None)
@given(text=TEXTS)
def test_roundtrip_with_special(loaded, text):
    """Where a space goes before each run of text, each is taken off again."""
    for kind in ("llama2", "gemma"):
        ours = loaded(kind)[1]
        assert text == ours.decode(ours.encode(text))


@settings(deadline=None)
@given(text=st.text("abehitnx12é "))
def test_roundtrip_of_unigram(loaded, text):
    """Text of known characters comes back as the normalisation has it."""
    ours = loaded("t5")[1]
    while "  " in text:
        text = text.replace("  ", " ")
    assert text.removeprefix(" ") == ours.decode(ours.encode(text))


def test_bytes(loaded):
    """The token of a byte is that byte where the decoder says so, and what is special is text."""
    ours = loaded("llama2")[1]
    ids = ours.encode("🙂")
    assert [b" ", b"\xf0", b"\x9f", b"\x99", b"\x82"] == list(map(ours.token_bytes, ids))
    assert b"</s>" == ours.token_bytes(ours.eos_id)
    spaces = loaded("gemma")[1].encode("  ")
    assert [b"  "] == list(map(loaded("gemma")[1].token_bytes, spaces))


def test_ends(loaded):
    """What ends a generation is known by name and by text."""
    library, ours = loaded("gemma")
    assert {library.token_to_id("</s>"), library.token_to_id("<end_of_turn>")} == ours.eos_ids


def test_ends_of_the_models_file(loaded, tmp_path):
    """Where generation_config.json says none, config.json does; what is no token ends nothing."""
    library, _ = loaded("gemma")
    library.save(str(tmp_path / "tokenizer.json"))
    known = {library.token_to_id("</s>"), library.token_to_id("<end_of_turn>")}
    for said in ([70, 71, "a", 10**6, True], 70, None):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": said}), encoding="utf-8")
        ours = {70, 71} if isinstance(said, list) else {said} - {None}
        assert known | ours == Tokenizer.from_folder(tmp_path).eos_ids
    (tmp_path / "config.json").write_text('{"eos_token_id": 70}', encoding="utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 71}', encoding="utf-8")
    assert known | {71} == Tokenizer.from_folder(tmp_path).eos_ids


@pytest.mark.parametrize(
    ("model", "decoder", "match"),
    [
        ("WordPiece", {"type": "WordPiece"}, "a WordPiece model with a WordPiece decoder"),
        ("BPE", None, "a BPE model with a None decoder"),
        ("BPE", {"type": "Fuse"}, "a BPE model with a Fuse decoder"),
        ("Unigram", {"type": "ByteLevel"}, "a Unigram model with a ByteLevel decoder"),
        ("BPE", {"type": "Metaspace", "replacement": "_"}, "a BPE model with a Metaspace decoder"),
        (
            "BPE",
            {
                "type": "Sequence",
                "decoders": [{"type": "Metaspace", "replacement": SPACE}, {"type": "CTC"}],
            },
            r"Metaspace \+ CTC decoder",
        ),
        ("BPE", {"type": "Sequence", "decoders": [5]}, "a None decoder"),
        (["BPE"], 7, "decoder is not supported; supported: a BPE model"),
    ],
)
def test_other_kinds(tmp_path, model, decoder, match):
    """Other kinds are refused by name, in one line that says which are supported."""
    source = {"model": {"type": model}, "decoder": decoder}
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match=match) as caught:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(caught.value)
    assert "Unigram" in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.sampled_from(["Sequence", "Replace", "Strip", "Metaspace", "Fuse", "ByteLevel", "BPE"])
    | st.sampled_from([SPACE, " ", 0, 1, -1, {"String": SPACE}, "first", "never", True]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "decoders", "pattern", "content", "start", "stop", "replacement"),
                    *("prepend_scheme", "pretokenizers"),
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(["decoder", "model", "pre_tokenizer", "normalizer", "added_tokens"]), JSON)
def test_any_json(tmp_path, key, value):
    """Whatever a tokenizer.json says, there is a tokenizer or an error of ours of one line."""
    source = json.loads(llama2().to_str()) | {key: value}
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    assert "\n" not in refusal(tmp_path)


def refusal(folder) -> str:
    """Why a folder cannot be used; nothing when it is.  Other errors are bugs."""
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except ModelError as error:
        return str(error)
    tokenizer.decode(tokenizer.encode(" the é🙂"))
    return ""
