"""How much of the prompts a step has while others wait for their next tokens."""

from __future__ import annotations

from typing import Final


BEARABLE: Final = 0.05
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

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """
        Begin with the fewest.

        Args:
            sizes: how many they may be.
        """
        self._sizes = sorted(sizes)
        self._at = self._refused = 0
        self.tokens = self._sizes[0]

    def took(self, tokens: int, seconds: float) -> None:
        """
        Note a step.

        Args:
            tokens: that it had; of more than it may have nothing is told.
            seconds: that it took.
        """
        if tokens > self.tokens:
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
