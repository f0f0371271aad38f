"""How likely tokens are: those that are drawn, and those of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis_workers.llm.rows import Rows


@dataclass(frozen=True, slots=True)
class Logprobs:
    """
    How likely a token was.

    Attributes:
        own: of the token itself.
        top: the likeliest tokens and theirs, likeliest first.
    """

    own: float
    top: list[tuple[int, float]]


def scores_of(rows: Rows, wanted: Sequence[int], tokens: Sequence[int], top: int) -> list[Logprobs]:
    """
    Of tokens of a prompt.

    Args:
        rows: of a step.
        wanted: which of them; neighbours.
        tokens: that follow them.
        top: how many of the likeliest are told with each.

    Raises:
        DeviceError: the step failed, or this.
    """
    own, values, ids = rows.scores(wanted, tokens, top)
    return [
        Logprobs(float(one), [*zip(best.tolist(), likely.tolist(), strict=True)])
        for one, likely, best in zip(own, values, ids, strict=True)
    ]


def logprobs_of(logits: NDArray[np.floating], token: int, top: int) -> Logprobs:
    """
    Of one token, beside the likeliest.

    Args:
        logits: (vocabulary,).
        token: which it is.
        top: how many others.
    """
    wide = logits.astype(np.float64)
    peak = wide.max()
    wide -= peak + np.log(np.exp(wide - peak).sum())
    count = min(top, wide.size)
    best = np.argpartition(-wide, count - 1)[:count] if count else np.empty(0, np.intp)
    best = best[np.lexsort((best, -wide[best]))]
    return Logprobs(float(wide[token]), [(int(i), float(wide[i])) for i in best])


__all__ = ["Logprobs", "logprobs_of", "scores_of"]
