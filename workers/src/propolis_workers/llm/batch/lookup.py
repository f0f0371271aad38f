"""
What comes next, guessed from what was there before (prompt look-up).

Answers often repeat their prompts: code that is changed, texts that are summed up, names. Where the
last tokens occurred before, what followed them then is a guess that costs nothing; the model
checks all of it in one step, and takes as much of it as it would have drawn anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Sequence

# How many of the last tokens are looked up: more of them first, as they say more.
_LENGTHS: Final = (4, 3, 2)


def guess(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """
    Guess the next tokens.

    Args:
        tokens: of the sequence so far.
        most: how many to guess at most.

    Returns:
        What followed the last earlier occurrence of the last tokens; empty where there is none.
    """
    if most < 1:
        return ()
    numbers = np.asarray(tokens, np.int64)
    for length in _LENGTHS:
        if len(numbers) <= length:
            continue
        last = numbers[-length:]
        windows = np.lib.stride_tricks.sliding_window_view(numbers[:-1], length)
        places = np.flatnonzero((windows == last).all(1))
        if places.size:
            start = int(places[-1]) + length
            return tuple(int(token) for token in numbers[start : start + most])
    return ()


__all__ = ["guess"]
