from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from propolis.errors import UsageError
from propolis_workers.llm.stopping import StopStrings


def expected_cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Search the whole text: earliest match, longest at one place."""
    starts = {stop: text.find(stop) for stop in stops if stop in text}
    if not starts:
        return text, None
    first = min(starts.values())
    return text[:first], max((stop for stop, at in starts.items() if at == first), key=len)


@given(
    st.lists(st.text("abc", max_size=4)),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
)
def test_the_cut_does_not_depend_on_the_pieces(pieces, stops):
    """Piece by piece gives what a search of the whole text gives."""
    finder = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, stopped = finder.push(piece)
        shown += text
        assert stopped == (finder.matched is not None)
    shown += finder.flush()
    assert expected_cut("".join(pieces), stops) == (shown, finder.matched)


def test_only_what_could_match_is_held_back():
    """Text is shown as soon as no stop string can begin in it."""
    finder = StopStrings(["<|end|>"])
    assert finder.push("Hi <") == ("Hi ", False)
    assert finder.push("|en") == ("", False)
    assert finder.push("t") == ("<|ent", False)
    assert finder.push("a<|end|>b") == ("a", True)
    assert finder.matched == "<|end|>"
    assert finder.push("more") == ("", True)
    assert finder.flush() == ""


def test_a_better_match_is_waited_for():
    """A stop string that is met waits for one that begins earlier or is longer."""
    finder = StopStrings(["b", "abc"])
    assert finder.push("ab") == ("", False)
    assert finder.push("c") == ("", True)
    assert finder.matched == "abc"
    finder = StopStrings(["b", "abc"])
    assert finder.push("ab") == ("", False)
    assert finder.flush() == "a"
    assert finder.matched == "b"


def test_without_stops_all_text_passes():
    """An empty list holds nothing back."""
    finder = StopStrings([])
    assert finder.push("abc") == ("abc", False)
    assert finder.flush() == ""


@pytest.mark.parametrize("stops", [[""], "stop", [1], ["x"] * 65, ["x" * 1025], None, 5])
def test_useless_stops_are_refused(stops):
    """Empty, overlong, too many or untyped stop strings are a UsageError of one line."""
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        StopStrings(stops)
