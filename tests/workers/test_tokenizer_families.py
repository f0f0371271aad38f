"""SentencePiece and Gemma's vocabularies in GGUF files, made by hand."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from small_vocabularies import BYTES
from small_vocabularies import MERGES
from small_vocabularies import NORMAL
from small_vocabularies import PRECOMPOSED
from small_vocabularies import SPACE
from small_vocabularies import UNIONS
from small_vocabularies import charsmap
from small_vocabularies import library_of_merges
from small_vocabularies import raw
from small_vocabularies import sentence_piece
from small_vocabularies import unigram

from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.tokenizer import Tokenizer


SPELLED = st.sampled_from(["<s>", "</s>", "<user>", "<bos>", " ", "  ", " the", "aaa", "\n\n", "é"])
UNICODE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE))
TEXTS = st.lists(SPELLED | st.text("abehitn 12é\n<>0xA") | UNICODE).map("".join)
TWINS = ("<unk>", "<s>", "</s>", *BYTES, SPACE, "a", "aa", "aaa")


@cache
def tokenizer(build, **changes) -> Tokenizer:
    """Return the tokenizer of a small vocabulary."""
    return Tokenizer.from_gguf(build(**changes))


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the text of each token, as the vocabulary has it."""
    return [tokenizer._parts.texts[index] for index in ids]


@settings(deadline=None)
@given(TEXTS)
def test_merges_by_score(text):
    """Where a union can be made in one way alone, merging by score is the library's BPE."""
    assert len(set(UNIONS)) == len(MERGES)
    metadata = sentence_piece(add_space_prefix=False)
    library = library_of_merges(metadata["tokenizer.ggml.tokens"])
    expected = library.encode(text.replace(" ", SPACE)).ids
    user = metadata["tokenizer.ggml.tokens"].index("<user>")
    ours = tokenizer(sentence_piece, add_space_prefix=False)
    if "<user>" not in text:
        assert expected == ours.encode(text, parse_special=False)
    assert text.count("<user>") == ours.encode(text, parse_special=False).count(user)


@pytest.mark.parametrize(
    ("text", "scores", "expected"),
    [
        ("aaaaa", (-1.0, -2.0), ["aa", "aaa"]),  # both pairs first, then the one that is left
        ("aaaaa", (-2.0, -1.0), ["aaa", "aa"]),  # a triple as soon as there can be one
        ("aaaaaa", (-1.0, -1.0), ["aaa", "aaa"]),  # the leftmost of equals
        ("aaa", (-1.0, -2.0), ["aaa"]),
    ],
)
def test_ties_go_by_position(text, scores, expected):
    """Of equal scores the leftmost pair is merged, whichever parts its union is made of."""
    scores = (0.0,) * 261 + scores
    ours = tokenizer(
        sentence_piece, tokens=TWINS, scores=scores, token_type=None, add_space_prefix=False
    )
    assert expected == texts(ours, ours.encode(text))


@settings(deadline=None)
@given(TEXTS, st.booleans(), st.booleans())
def test_sentence_piece_roundtrip(text, parse_special, prefixed):
    """Any text comes back, at once and token by token; control tokens only if asked for."""
    ours = tokenizer(sentence_piece, add_space_prefix=prefixed)
    ids = ours.encode(text, parse_special=parse_special)
    assert text == ours.decode(ids)
    assert text == ours.decode(
        ours.encode(text, parse_special=False, add_special=True), skip_special=True
    )
    if not parse_special:
        assert not ours.special_ids & set(ids)
    detokenizer = Detokenizer(ours, skip_special=False)
    shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert b"".join(map(ours.token_bytes, ids)).decode() == shown


def test_space_prefix():
    """A space goes before the text and after each special token, if the file does not say no."""
    ours = tokenizer(sentence_piece)
    expected = [f"{SPACE}the", "</s>", SPACE, "a", "<user>", SPACE, "b"]
    ids = ours.encode("the</s>a<user>b")
    assert expected == texts(ours, ids)
    assert b" the" == ours.token_bytes(ids[0])
    bare = tokenizer(sentence_piece, add_space_prefix=False)
    assert ["t", "he", "</s>", "a"] == texts(bare, bare.encode("the</s>a"))
    assert ours.encode("") == []


def test_bytes():
    """A character that is no token becomes its bytes; text that spells a byte's token does not."""
    ours = tokenizer(sentence_piece)
    ids = ours.encode("🙂")
    assert [SPACE, "<0xF0>", "<0x9F>", "<0x99>", "<0x82>"] == texts(ours, ids)
    assert [b" ", b"\xf0", b"\x9f", b"\x99", b"\x82"] == list(map(ours.token_bytes, ids))
    detokenizer = Detokenizer(ours)
    assert [" ", "", "", "", "🙂"] == list(map(detokenizer.push, ids))
    assert "<0x0A>" == ours.decode(ours.encode("<0x0A>"))


def test_sentence_piece_ends():
    """The begin is added where the file is silent, the end is not; llama.cpp's ids are meant."""
    ours = tokenizer(sentence_piece)
    assert (1, 2, {2}) == (ours.bos_id, ours.eos_id, ours.eos_ids)
    assert [1, *ours.encode("the")] == ours.encode("the", add_special=True)
    both = tokenizer(sentence_piece, add_bos_token=False, add_eos_token=True)
    assert [*both.encode("the"), 2] == both.encode("the", add_special=True)


def test_stripping():
    """In Phi 3 a special token takes the white space behind it, save after <s>."""
    metadata = sentence_piece() | {"general.name": "Phi-3 mini"}
    ours = Tokenizer.from_gguf(metadata)
    assert ["</s>", SPACE, "a"] == texts(ours, ours.encode("</s> \n a"))
    assert ["<s>", f"{SPACE}{SPACE}", "a"] == texts(ours, ours.encode("<s> a"))
    assert ours.fewest("a" * 99) == 0


def test_stripping_before():
    """In models with Nomic's vocabulary <mask> takes the white space before it."""
    metadata = unigram() | {"general.architecture": "nomic-bert-moe"}
    names = ["<mask>" if x == "</s>" else x for x in metadata["tokenizer.ggml.tokens"]]
    bare = unigram(remove_extra_whitespaces=False, add_space_prefix=False)
    changes = {"tokenizer.ggml.tokens": names, "tokenizer.ggml.eos_token_id": 0}
    for rules, spaces in ((metadata, []), (bare, [SPACE] * 2)):
        ours = Tokenizer.from_gguf(rules | changes | {"tokenizer.ggml.add_space_prefix": False})
        found = texts(ours, ours.encode("a  <mask>b", parse_special=True))
        between = found[found.index("a") + 1 : found.index("<mask>")]
        assert spaces == between
        assert found[-1] == "b"


def test_the_mark_of_spaces():
    """What SentencePiece writes for a space is one when it is read."""
    for build in (sentence_piece, raw):
        ours = tokenizer(build)
        assert "a b" == ours.decode(ours.encode(f"a{SPACE}b"))


@pytest.mark.parametrize("build", [sentence_piece, raw])
def test_fewest(build):
    """A bound on the number of tokens is known without encoding."""
    ours = tokenizer(build)
    assert all(0 < ours.fewest(x) <= len(ours.encode(x)) for x in ("a", "the aaaa" * 9, "🙂" * 50))


def test_continued_text_keeps_its_space():
    """Ids that follow others are read as they are, where a whole text loses the added space."""
    ours = tokenizer(sentence_piece)
    ids = ours.encode("the the")
    assert "the the" == ours.decode(ids)
    assert " the" == ours.decode(ids[1:], continues=True)
    assert " the the" == ours.decode(ids, continues=True)


@settings(deadline=None)
@given(TEXTS)
def test_raw_bpe(text):
    """Gemma's merging is the library's, of lines, and any text comes back."""
    metadata = raw()
    ours = tokenizer(raw)
    ids = ours.encode(text, parse_special=False)
    assert text == ours.decode(ids)
    if "\n\n" not in text and "<user>" not in text:
        library = library_of_merges(metadata["tokenizer.ggml.tokens"])
        lines = text.replace(" ", SPACE).split("\n")
        expected = [library.encode(line).ids for line in lines]
        (newline,) = ours.encode("\n")
        joined = [index for line in expected for index in [newline, *line]]
        assert joined[1:] == ids


def test_raw_bpe_lines():
    """A run of newlines that is a token is taken whole; a begin is added whatever the file says."""
    ours = tokenizer(raw, add_bos_token=False)
    assert ["a", "\n\n\n", f"{SPACE}the"] == texts(ours, ours.encode("a\n\n\n the"))
    assert ["\n\n", "\n\n"] == texts(ours, ours.encode("\n\n\n\n"))
    assert [0, *ours.encode("a")] == ours.encode("a", add_special=True)
    assert ["a"] == texts(ours, ours.encode("a"))


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("merged", [True, False])
def test_unigram(prefixed, merged):
    """Spaces are merged if the file says so, and a word then always starts with one."""
    ours = tokenizer(unigram, add_space_prefix=prefixed, remove_extra_whitespaces=merged)
    first = [f"{SPACE}the"] if prefixed or merged else ["t", "he"]
    between = [] if merged else [SPACE]
    assert [*first, *between, SPACE, "a"] == texts(ours, ours.encode("the  a"))
    spaces = [] if merged else [SPACE]
    assert spaces == texts(ours, ours.encode(" "))
    assert [] == ours.encode("")


@settings(deadline=None)
@given(st.lists(st.sampled_from([*PRECOMPOSED, "a", "e", "the", "<unk>", " ", "é"])).map("".join))
def test_unigram_is_the_library(text):
    """The ids are those of the library's own model and normalisation, and an end is added."""
    from tokenizers import normalizers

    ours = tokenizer(unigram)
    blob = bytes(charsmap(PRECOMPOSED))
    normal = normalizers.Precompiled(blob).normalize_str(text)
    words = normal.split(" ")
    plain = tokenizer(unigram, precompiled_charsmap=None, remove_extra_whitespaces=False)
    spaced = " ".join(word for word in words if word)
    assert plain.encode(spaced, parse_special=False) == ours.encode(text, parse_special=False)
    assert [*ours.encode(text), 1] == ours.encode(text, add_special=True)
    if "<" not in text:
        assert spaced == ours.decode(ours.encode(text))


@settings(deadline=None)
@given(st.text("abehitn f"))
def test_unigram_viterbi(text):
    """No other way to spell a text is likelier, and unknown characters are one token together."""
    metadata = unigram()
    names, scores = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
    ours = tokenizer(unigram)
    score = {name: value for name, value in zip(names, scores, strict=True) if value < -1}
    spelled = "".join(SPACE + word for word in text.split())
    best = [0.0] + [-1e9] * len(spelled)
    for end in range(1, len(spelled) + 1):
        ways = [best[start] + score.get(spelled[start:end], -1e9) for start in range(end)]
        best[end] = max(ways)
    ids = ours.encode(text)
    assert best[-1] == pytest.approx(sum(scores[index] for index in ids))
    assert ["<unk>"] == texts(ours, ours.encode("a🙂🙂xb"))[2:-1]


def test_special_text_is_not_spelled_by_unigram():
    """Without parse_special no text becomes a control token or one of no use."""
    ours = tokenizer(unigram)
    for text in ("<pad>", "</s>", "<unk>", "[PAD]"):
        found = texts(ours, ours.encode(text, parse_special=False))
        assert text == "<unk>" or text not in found
    assert ["</s>"] == texts(ours, ours.encode("</s>"))


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        (["<|end|>"], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<end_of_turn>", "<|im_end|>"], {"<end_of_turn>", "<|im_end|>"}),
        (["<|fim_pad|>", "<|fim_prefix|>"], {"<|fim_pad|>"}),
        (["</p>"], set()),
    ],
)
def test_ends_by_text(more, ends):
    """What ends a generation is known by its text, and no text becomes it unasked."""
    metadata = sentence_piece()
    tokens = [*metadata["tokenizer.ggml.tokens"], *more]
    types = metadata["tokenizer.ggml.token_type"] + [NORMAL] * len(more)
    scores = metadata["tokenizer.ggml.scores"] + [0.0] * len(more)
    ours = tokenizer(
        sentence_piece, tokens=tuple(tokens), token_type=tuple(types), scores=tuple(scores)
    )
    assert {"</s>", *ends} == set(texts(ours, ours.eos_ids))
    for text in ends:
        assert [tokens.index(text)] == ours.encode(text)
        assert tokens.index(text) not in ours.encode(text, parse_special=False)
