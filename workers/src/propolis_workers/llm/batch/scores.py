"""How likely tokens are: those that are drawn, and those of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
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


@dataclass(slots=True)
class PromptScores:
    """
    Those of a prompt's tokens but the first, as they become known.

    Attributes:
        top: how many of the likeliest tokens are told with each.
        known: from the second token on.
    """

    top: int
    known: list[Logprobs] = field(default_factory=list)

    def read(self, rows: Rows, wanted: Sequence[int], tokens: Sequence[int]) -> None:
        """
        Take the next.

        Args:
            rows: of a step.
            wanted: which of them; neighbours.
            tokens: that follow them.

        Raises:
            DeviceError: the step failed, or this.
        """
        own, values, ids = rows.scores(wanted, tokens, self.top)
        self.known += [
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


__all__ = ["Logprobs", "PromptScores", "logprobs_of"]
