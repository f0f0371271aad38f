"""Tells text and calls apart, in an answer that comes in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis_workers.llm.tools.calls import Call
    from propolis_workers.llm.tools.families import Body
    from propolis_workers.llm.tools.families import Family


class Reader:
    """
    Reads one answer of a model that was told of tools.

    Text is given on at once, save what may be the beginning of a call, and white space, which is
    dropped next to calls. What looks like a call and is none, as it is cut, no JSON, or of a tool
    that there is not, is text after all. However an answer is cut into pieces, the outcome is
    the same.
    """

    def __init__(self, family: Family, names: Collection[str], *, most: int | None = None) -> None:
        """
        Begin before the answer.

        Args:
            family: how the model writes calls.
            names: of the tools.
            most: calls to read; what follows them is dropped.
        """
        self._family = family
        self._names = frozenset(names)
        self._left = 1 if family.single else most
        self._held = ""
        self._body: Body | None = None
        self._begin = ""
        self._fresh = True
        self._called = False

    @property
    def whole(self) -> bool:
        """Whether all calls were read that there may be: what follows is dropped."""
        return self._left == 0

    def push(self, text: str, *, final: bool = False) -> list[str | Call]:
        """
        Take the next piece.

        Args:
            text: The piece.
            final: Whether it is the last.

        Returns:
            Text that is safe to show and whole calls, in order.
        """
        said: list[str | Call] = []
        if self.whole:
            return said
        self._held += text
        while True:
            if self._body is None and not self._sought(said, final=final):
                return said
            assert self._body is not None  # noqa: S101  for the type checker
            read = self._body.read(self._held, self._names, final=final)
            if read is None:
                return said
            self._body = None
            if not read.calls:
                self._say(said, self._begin + self._held[: read.used])
            self._held = self._held[read.used :]
            for call in read.calls:
                self._called = True
                said.append(call)
                if self._left is not None:
                    self._left -= 1
                if self.whole:
                    return said

    def _sought(self, said: list[str | Call], *, final: bool) -> bool:
        """Look for where a call begins; text before it is said."""
        if self._called:
            self._held = self._held.lstrip()
        if self._fresh and self._family.bare:
            begun = self._held.lstrip()
            if not begun and not final:
                return False
            if begun.startswith("{"):
                self._enter(self._held[: -len(begun)], begun)
                return True
        marker = self._family.marker
        at = self._held.find(marker)
        if at >= 0:
            before = self._held[:at].rstrip()
            self._say(said, before)
            space = self._held[len(before) : at]
            begin = space if self._family.hidden else space + marker
            self._enter(begin, self._held[at + len(marker) :])
            return True
        safe = len(self._held)
        if not final:
            safe -= _begun(self._held, marker)
            safe = len(self._held[:safe].rstrip())
        self._say(said, self._held[:safe])
        self._held = self._held[safe:]
        return False

    def _enter(self, begin: str, rest: str) -> None:
        self._body, self._begin, self._held = self._family.body(), begin, rest
        self._fresh = False

    def _say(self, said: list[str | Call], text: str) -> None:
        if not text:
            return
        self._fresh = self._called = False
        if said and isinstance(said[-1], str):
            said[-1] += text
        else:
            said.append(text)


def _begun(text: str, marker: str) -> int:
    """How many of the last characters may be the first of a marker."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


__all__ = ["Reader"]
