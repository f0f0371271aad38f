"""Tokens of many answers at once, drawn among the likeliest of each."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis_workers.llm.chances import place_of_first
from propolis_workers.llm.chances import uniform


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis_workers.llm.sampling import SamplingParams

# What no token's id is, whose chance says whether one of those not looked at is drawn.
_OTHERS = np.array([[np.iinfo(np.int64).max]])


def places_among(
    params: Sequence[SamplingParams],
    keys: NDArray[np.uint64],
    logits: NDArray[np.floating[Any]],
    ids: NDArray[np.integer[Any]],
    masses: Sequence[float | None],
) -> NDArray[np.intp]:
    """
    Draw one of the likeliest tokens of each row.

    Where no cut leaves the others out, a first chance says whether it is one of them, by how much
    they weigh together.

    Args:
        params: of each row, whose temperature is above 0.
        keys: (rows,): of the chances of each.
        logits: (rows, tokens), likeliest first, of equal ones the lower id first; the first one is
            finite, and none NaN.
        ids: of the same tokens.
        masses: how much all tokens of a row weigh at its temperature, where the likeliest weighs 1;
            None where those given are all.

    Returns:
        (rows,): the place of the token; -1 where it may be one of the others.
    """
    temperature, top_p, min_p = (
        np.array([getattr(one, name) for one in params])[:, None]
        for name in ("temperature", "top_p", "min_p")
    )
    places = np.arange(logits.shape[1])
    top_k = np.array([one.top_k or places.size for one in params])[:, None]
    whole = np.array([bool(one.top_k) for one in params]) | [mass is None for mass in masses]
    weights = logits.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        weights -= weights[:, :1]
        weights /= temperature
        np.exp(weights, out=weights)
    weights[places >= top_k] = 0.0
    sums = weights.sum(1)
    total = np.where(whole, sums, [0.0 if mass is None else mass for mass in masses])
    # Whichever is the first to hold the mass is kept: behind it none is likelier than before.
    before = np.zeros_like(weights)
    np.cumsum(weights[:, :-1], 1, out=before[:, 1:])
    cut = (before >= top_p * total[:, None]) & (top_p < 1.0) & (places > 0)
    cut |= weights < min_p
    weights[cut] = 0.0
    uncut = ((top_p == 1.0) & (min_p == 0.0))[:, 0]
    chances = uniform(keys, _OTHERS)[:, 0]
    inside = whole | cut.any(1) | (uncut & (chances * total < sums))
    drawn = place_of_first(keys, weights, ids)
    drawn[~(inside & np.isfinite(total))] = -1
    return drawn


__all__ = ["places_among"]
