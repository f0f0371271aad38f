"""Prompts become the ids of transformers' CLIPTokenizer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from propolis import default_runtime
from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.sd.text import TextEncoder
from propolis_workers.sd.tokenizer import CLIPTokenizer


DATA = Path(__file__).parents[2] / "data" / "sd"
SPEC = importlib.util.spec_from_file_location("sd_tokens", DATA / "tokens.py")
tokens = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tokens)
PADS = {"eos": None, "!": "!"}


@pytest.fixture
def folder(tmp_path):
    """The tokenizer's folder, to be changed."""
    return tokens.write_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize("pad", PADS)
def test_golden(tmp_path, pad, capsys):
    """Ids are the committed ones of transformers, with either token for padding."""
    golden = json.loads((DATA / "tokens.json").read_text(encoding="utf-8"))[pad]
    tokenizer = CLIPTokenizer.from_folder(tokens.write_tokenizer(tmp_path / "t", PADS[pad]))
    for text, ids in zip(tokens.TEXTS, golden, strict=True):
        assert ids == tokenizer.encode(text).ids, text
    capsys.readouterr()  # warnings of what was cut


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("pad", PADS)
def test_live(tmp_path, pad, oracles):
    """Ids are those that transformers gives now; its own tokenizer.json gives them too."""
    folder = tokens.write_tokenizer(tmp_path / "t", PADS[pad])
    theirs = tokens.ids_of_transformers(folder)
    assert theirs == [CLIPTokenizer.from_folder(folder).encode(text).ids for text in tokens.TEXTS]
    from transformers import CLIPTokenizer as Theirs

    saved = tmp_path / "saved"
    Theirs.from_pretrained(folder).save_pretrained(saved)
    for name in ("vocab.json", "merges.txt"):
        (saved / name).unlink(missing_ok=True)
    assert theirs == [CLIPTokenizer.from_folder(saved).encode(text).ids for text in tokens.TEXTS]


@pytest.mark.parametrize(
    ("said", "longest"), [(12, 12), (77, 77), (10**30, None), (1, None), ("x", None)]
)
def test_the_longest_prompt(folder, said, longest):
    """It is what the tokenizer's settings say, where they do; fewer than the encoder has places."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": said}))
    tokenizer = CLIPTokenizer.from_folder(folder)
    assert tokenizer.longest == longest
    config = SimpleNamespace(max_position_embeddings=77, vocab_size=tokenizer.vocab_size)
    lengths = []

    def encoder(ids):
        lengths.append(ids.shape[1])
        return SimpleNamespace(last=ids)

    encoder.config = config
    TextEncoder([encoder], [tokenizer], default_runtime().device("cpu"), pooled=False)("the cat")
    assert lengths == [longest or 77]


def test_special_tokens_map(folder):
    """Special tokens may be named in special_tokens_map.json, as objects too."""
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "!"}}))
    tokenizer = CLIPTokenizer.from_folder(folder)
    assert tokens.vocabulary()["!"] == tokenizer.pad_id
    assert len(tokens.vocabulary()) == tokenizer.vocab_size


@pytest.mark.parametrize(
    ("text", "length", "cut"),
    [
        ("the cat", 77, ""),
        ("cat " * 75, 77, ""),
        ("cat " * 75 + "The  end", 77, "The  end"),
        ("cat \u0301\u00c9 the", 5, "\u00c9 the"),
        ("the cat", 2, "the cat"),
        ("caca", 3, "ca"),
    ],
)
def test_cut(folder, capsys, text, length, cut):
    """What does not fit is given back as it stands; the log says so, without text."""
    found = CLIPTokenizer.from_folder(folder).encode(text, length)
    assert (length, cut) == (len(found.ids), found.cut)
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [("prompt.cut", length - 2)] * bool(cut) == [
        (line["event"], line["limit"]) for line in logged
    ]
    assert all(set(line) <= {"event", "level", "timestamp", "tokens", "limit"} for line in logged)


def test_bad_text(folder):
    """Text that is no Unicode, and lengths without room, are the user's mistakes."""
    tokenizer = CLIPTokenizer.from_folder(folder)
    with pytest.raises(UsageError, match="lone surrogate at index 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(UsageError, match="a prompt of 1 tokens has no room"):
        tokenizer.encode("a", 1)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("vocab.json", "{", FileFormatError, r"vocab.json is not JSON"),
        ("vocab.json", '{"a": -1}', FileFormatError, r"the id of 'a' is -1"),
        ("vocab.json", '{"a": "b"}', FileFormatError, r"the id of 'a' is 'b'"),
        ("vocab.json", '{"a": 0}', FileFormatError, "cannot be used|not in the vocabulary"),
        ("merges.txt", "a b c\n", FileFormatError, r"merges.txt: line 1 is 'a b c', not a pair"),
        ("merges.txt", "x yz\n", FileFormatError, r"merges.txt: no merge \(of 1\) makes"),
        ("merges.txt", "", FileFormatError, r"merges.txt: no merge \(of 0\) .* it is cut; get"),
        ("merges.txt", "cut", FileFormatError, r"merges.txt: no merge \(of \d+\) .* it is cut"),
        ("tokenizer_config.json", '{"bos_token": "<s>"}', FileFormatError, "bos_token '<s>' is"),
        ("tokenizer_config.json", '{"pad_token": 3}', FileFormatError, "pad_token is 3, not a te"),
        ("merges.txt", None, ModelError, "tokenizer has no tokenizer: vocab.json and merges.txt"),
    ],
)
def test_damaged(folder, name, content, error, message):
    """A damaged file is named, with what is wrong in it."""
    if content is None:
        (folder / name).unlink()
    elif content == "cut":
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: len(lines) * 2 // 3]))
    else:
        (folder / name).write_text(content)
    with pytest.raises(error, match=message):
        CLIPTokenizer.from_folder(folder)


def test_other_vocabularies(folder):
    """The tokenizer.json of another kind of model is refused."""
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece"}}))
    with pytest.raises(
        UnsupportedModelError, match="a WordPiece vocabulary with the word end None"
    ):
        CLIPTokenizer.from_folder(folder)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("truncation", ["left", "right"])
def test_sides(folder, padding, truncation, oracles, capsys):
    """Prompts are filled up and cut at the side that the settings name, as by transformers."""
    from transformers import CLIPTokenizer as Theirs

    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text()) if path.is_file() else {}
    values |= {"padding_side": padding, "truncation_side": truncation}
    path.write_text(json.dumps(values))
    theirs, ours = Theirs.from_pretrained(folder), CLIPTokenizer.from_folder(folder)
    whole = {"padding": "max_length", "truncation": True, "max_length": 12}
    for text in ("a cat", "the cat sat on the mat and looked at all the other cats in the room"):
        assert ours.encode(text, 12).ids == theirs(text, **whole).input_ids
    capsys.readouterr()


def test_an_unknown_side(folder):
    """It is refused by its name."""
    (folder / "tokenizer_config.json").write_text('{"padding_side": "both"}')
    with pytest.raises(UnsupportedModelError, match="padding_side is 'both'; supported: left, ri"):
        CLIPTokenizer.from_folder(folder)


@pytest.mark.parametrize("told", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_added_tokens(folder, told):
    """Words of textual inversion have their numbers, wherever transformers wrote them."""
    size = CLIPTokenizer.from_folder(folder).vocab_size
    token = {"content": "<cat-toy>", "lstrip": False, "rstrip": False, "special": False}
    values = {
        "added_tokens.json": {"<cat-toy>": size},
        "tokenizer_config.json": {"added_tokens_decoder": {str(size): token}},
        "tokenizer.json": {"added_tokens": [{"id": size, **token}]},
    }
    (folder / told).write_text(json.dumps(values[told]))
    ours = CLIPTokenizer.from_folder(folder)
    assert ours.vocab_size == size + 1
    assert ours.encode("a <cat-toy> sat", 9).ids.count(size) == 1


@pytest.mark.parametrize("written", ["x", None, 1.5])
def test_added_tokens_without_numbers(folder, written):
    """The file is damaged, and said to be."""
    (folder / "added_tokens.json").write_text(json.dumps({"<cat-toy>": written}))
    with pytest.raises(FileFormatError, match=r"an added token has no number: \{'<cat-t"):
        CLIPTokenizer.from_folder(folder)


def test_a_token_that_the_text_encoder_does_not_know(folder):
    """A word that was added to the tokenizer alone is told, and what is said without it drawn."""
    size = CLIPTokenizer.from_folder(folder).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<cat-toy>": size}))

    def encoder(ids):
        return SimpleNamespace(last=ids)

    encoder.config = SimpleNamespace(max_position_embeddings=77, vocab_size=size)
    tokenizers = [CLIPTokenizer.from_folder(folder)]
    texts = TextEncoder([encoder], tokenizers, default_runtime().device("cpu"), pooled=False)
    texts("the cat")
    with pytest.raises(ModelError, match=f"token {size}, and the text encoder has {size}: they"):
        texts("the <cat-toy>")
