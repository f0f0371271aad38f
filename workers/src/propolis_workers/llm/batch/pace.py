"""How much of the prompts a step has while others wait for their next tokens."""

from __future__ import annotations

from typing import Final

from propolis_workers.llm.chunks import WIDEST


BEARABLE: Final = 0.1
"""Seconds that a step with a part of a prompt may take: so long does each next token wait."""

PATIENCE: Final = 32
"""Steps until more tokens are tried again that took too long."""


class Pace:
    """
    Tokens of a step: as many as are computed in the time that whoever waits can bear.

    A step costs its launches, whatever it has: on a fast device few tokens take as long as many,
    so that prompts of many would be read at a fraction of its speed.

    Attributes:
        tokens: of the next step.
    """

    def __init__(self, sizes: tuple[int, ...], *, stays: bool = False) -> None:
        """
        Begin with the fewest.

        Args:
            sizes: how many they may be.
            stays: whether they are the fewest for ever.
        """
        self._sizes, self._stays = sorted(sizes), stays
        self._at = self._refused = 0
        self.tokens = self._sizes[0]

    @property
    def alone(self) -> tuple[int, ...]:
        """
        Sizes of a step in which nobody waits for his next token, the most first.

        Somebody may come meanwhile: so it has no more than one sequence gains by, unless such a
        step is known to be soon done.
        """
        most = max(WIDEST, self.tokens)
        return tuple(size for size in reversed(self._sizes) if size <= most)

    def took(self, tokens: int, seconds: float) -> None:
        """
        Note a step.

        Args:
            tokens: that it had; of more than it may have nothing is told.
            seconds: that it took.
        """
        if tokens > self.tokens or self._stays:
            return
        full = 4 * tokens >= 3 * self.tokens
        self._refused = max(self._refused - full, 0)
        if seconds > BEARABLE and self._at and tokens > self._sizes[self._at - 1]:
            self._at -= 1
            self._refused = PATIENCE
        elif full and 2 * seconds <= BEARABLE and self._at + 1 < len(self._sizes):
            self._at += not self._refused
        self.tokens = self._sizes[self._at]

    def short_of_memory(self) -> None:
        """Have the fewest from now on."""
        self._sizes, self._at = self._sizes[:1], 0
        self.tokens = self._sizes[0]
