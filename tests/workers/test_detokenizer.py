from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from propolis_workers.llm.detokenizer import Detokenizer


class FakeTokenizer:
    """Ids 0 to 255 are bytes, 256 is a control token, 257 a whole word."""

    special_ids = frozenset({256})

    def token_bytes(self, index: int) -> bytes:
        """Return what an id stands for."""
        return {256: b"<|end|>", 257: "né".encode()}.get(index) or bytes([index])


@given(st.lists(st.integers(0, 257)), st.booleans())
def test_joined_output_is_the_text(ids, skip_special):
    """Whatever the bytes, all pushes and the flush joined are the bytes decoded at once."""
    tokenizer = FakeTokenizer()
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    kept = [index for index in ids if not (skip_special and index == 256)]
    expected = b"".join(map(tokenizer.token_bytes, kept)).decode(errors="replace")
    assert expected == "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_characters_come_whole(text):
    """Of valid text no push gives a part of a character or U+FFFD in its place."""
    detokenizer = Detokenizer(FakeTokenizer())
    shown = ""
    for index in text.encode():
        shown += detokenizer.push(index)
        assert text.startswith(shown)
    assert text == shown
    assert detokenizer.flush() == ""


def test_a_character_comes_with_its_last_byte():
    """Nothing is held back longer than it must be."""
    detokenizer = Detokenizer(FakeTokenizer())
    assert ["", "", "", "🙂", "a"] == [detokenizer.push(index) for index in "🙂a".encode()]


def test_flush_ends_the_sequence():
    """What stays incomplete becomes U+FFFD, and is not carried into the next sequence."""
    detokenizer = Detokenizer(FakeTokenizer())
    assert detokenizer.push(0xE2) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"
    assert detokenizer.push(0x61) == "a"
    assert detokenizer.flush() == ""
