"""Tokens of many answers at once, drawn among the likeliest of each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis_workers.llm.chances import place_of_first
from propolis_workers.llm.chances import uniform


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis_workers.llm.sampling import SamplingParams


def places_among(
    params: Sequence[SamplingParams],
    keys: NDArray[np.uint64],
    logits: NDArray[np.floating[Any]],
    ids: NDArray[np.integer[Any]],
    masses: Sequence[float | None],
) -> list[int]:
    """
    Draw one of the likeliest tokens of each row, where cuts leave no others.

    Args:
        params: of each row, whose temperature is above 0.
        keys: (rows,): of the chances of each.
        logits: (rows, tokens), likeliest first, of equal ones the lower id first; the first one is
            finite, and none NaN.
        ids: of the same tokens.
        masses: how much all tokens of a row weigh at its temperature, where the likeliest weighs 1;
            None where those given are all.

    Returns:
        Of each row the place of the token; -1 where it may be one of the others.
    """
    width = logits.shape[1]
    weights = logits.astype(np.float64)
    weights -= weights[:, :1].copy()
    weights /= _column([one.temperature for one in params])
    np.exp(weights, out=weights)
    if any(0 < one.top_k < width for one in params):
        weights *= np.arange(width) < _column([one.top_k or width for one in params])
    sums = weights.sum(1).tolist()
    whole = [bool(one.top_k) or mass is None for one, mass in zip(params, masses, strict=True)]
    total = [
        own if alone or mass is None else mass
        for own, alone, mass in zip(sums, whole, masses, strict=True)
    ]
    known = whole
    if any(one.top_p < 1.0 or one.min_p > 0.0 for one in params):
        # Whichever is the first to hold the mass is kept: behind it none is likelier than before.
        bounds = [one.top_p * all_of_it for one, all_of_it in zip(params, total, strict=True)]
        cut: NDArray[np.bool_] = weights < _column([one.min_p for one in params])
        cut[:, 1:] |= (weights[:, :-1].cumsum(1) >= _column(bounds)) & (
            _column([one.top_p for one in params]) < 1.0
        )
        weights[cut] = 0.0
        known = [one or bool(some) for one, some in zip(whole, cut.max(1), strict=True)]
        width -= int(cut.all(0).sum())  # at the end, as they are in order
    drawn = place_of_first(weights[:, :width], uniform(keys, ids[:, :width]))
    sure = [one and math.isfinite(mass) for one, mass in zip(known, total, strict=True)]
    return [place if one else -1 for place, one in zip(drawn, sure, strict=True)]


def _column(numbers: list[float]) -> NDArray[np.float64] | float:
    """One for each row; where they are alike, as of one row, one for all."""
    return numbers[0] if len(set(numbers)) == 1 else np.array(numbers)[:, None]


__all__ = ["places_among"]
