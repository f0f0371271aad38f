"""What ends an answer: tokens, and strings, found in text that comes in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Sequence

# Every held-back position is compared with every stop string.
_MAX_STOPS = 64
_MAX_LENGTH = 1024


@dataclass(frozen=True, kw_only=True)
class Ending:
    """
    Which tokens end an answer; the defaults let the model's own do.

    Attributes:
        ids: tokens that do so too.
        ignore_eos: the model's own do not.
        min_tokens: none of them, nor of the model's own, is drawn before there are so many others,
            until when strings end nothing either.
    """

    ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    def of(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """All that end it, where these are the model's own."""
        return frozenset(self.ids) | (frozenset() if self.ignore_eos else eos_ids)

    def barred(self, eos_ids: frozenset[int], drawn: int) -> frozenset[int]:
        """What may not be drawn after so many tokens."""
        return eos_ids.union(self.ids) if drawn < self.min_tokens else frozenset()


class StopStrings:
    """
    Cuts a stream of text before the first stop string in it.

    The match that begins earliest wins, and of those that begin at one place the longest;
    so the outcome is that of searching the whole text, however it was cut into pieces.
    For that a match is not final while a better one could still come: with stops "b" and
    "abc", "ab" is held until the next character decides.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        try:
            wrong = isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops)
        except TypeError:  # no list at all
            wrong = True
        if wrong:
            msg = f"stop strings must be a list of str, not {type(stops).__name__}: {stops!r:.80}"
            raise UsageError(msg)
        if "" in stops:
            msg = "a stop string is empty: every answer would end before it begins"
            raise UsageError(msg)
        if len(stops) > _MAX_STOPS or not all(0 < len(stop) <= _MAX_LENGTH for stop in stops):
            lengths = [len(stop) for stop in stops]
            msg = f"{len(lengths)} stop strings, of lengths {min(lengths)} to {max(lengths)}; "
            msg += f"at most {_MAX_STOPS} of 1 to {_MAX_LENGTH} characters are allowed"
            raise UsageError(msg)
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._matched

    def push(self, text: str) -> tuple[str, bool]:
        """
        Take the next piece of text.

        Args:
            text: The piece.

        Returns:
            The text that is safe to show, and whether a stop string was met; once one was,
            all further text is dropped.
        """
        if self._matched is not None:
            return "", True
        held = self._held + text
        start, stop = self._best(held)
        # What could become a match at or before `start` keeps everything from there on.
        for place in range(max(0, len(held) - self._longest + 1), min(start + 1, len(held))):
            tail = held[place:]
            if any(len(tail) < len(other) and other.startswith(tail) for other in self._stops):
                self._held = tail
                return held[:place], False
        return self._settle(held, start, stop)

    def flush(self) -> str:
        """
        End the text.

        Returns:
            What was held back, up to the stop string if one is in it: see `matched`.
        """
        if self._matched is not None:
            return ""
        shown, _ = self._settle(self._held, *self._best(self._held))
        return shown

    def _best(self, text: str) -> tuple[int, str | None]:
        """Return where the first match begins, and the longest that begins there."""
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return len(text), None
        start, _, stop = min(found)
        return start, stop

    def _settle(self, text: str, start: int, stop: str | None) -> tuple[str, bool]:
        """Show the text up to a match that no other can beat any more."""
        self._held = ""
        self._matched = stop
        return text[:start], stop is not None
