"""Chances of tokens, and which of them are the likeliest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any

import numpy as np


if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF, _BITS = np.uint64((1 << 32) - 1), np.uint64(32)
# Into how many shares tokens are put by their logits, and how unlikely the last is, as a logarithm.
_BINS, _FARTHEST = 4096, 32.0


def uniform(keys: NDArray[np.uint64], ids: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """
    A number between 0 and 1 of each id, by a key: the same whatever other ids there are.

    Mixed twice as MurmurHash3 (Appleby 2011) ends, once with each half of the key.

    Args:
        keys: (rows,).
        ids: (rows, ids), or (1, ids) for all.
    """
    bits = ids.astype(np.uint32)
    for half in (keys & _HALF, keys >> _BITS):
        bits = bits + half.astype(np.uint32)[:, None]
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            bits ^= bits >> np.uint32(shift)
            bits *= np.uint32(factor)
        bits ^= bits >> np.uint32(16)
    return (bits.astype(np.float64) + 0.5) * 2.0**-32  # never 0 or 1


def finite(logits: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """The same, save where some are infinitely likelier than the rest, and alike."""
    if logits.max() < math.inf:
        return logits
    return np.where(logits == math.inf, np.float32(0), np.float32(-math.inf))


def likeliest(logits: NDArray[np.floating[Any]], count: int) -> NDArray[np.intp]:
    """Return the `count` likeliest ids, likeliest first."""
    if count < logits.size:
        bound = np.partition(logits, logits.size - count)[logits.size - count]
        above = np.flatnonzero(logits > bound)
        equal = np.flatnonzero(logits == bound)[: count - above.size]
        chosen = np.sort(np.concatenate([above, equal]))
    else:
        chosen = np.arange(logits.size)
    return np.asarray(chosen[np.argsort(-logits[chosen], kind="stable")])


def nucleus(
    logits: NDArray[np.floating[Any]], weights: NDArray[np.float64], mass: float
) -> NDArray[np.intp]:
    """
    Return ids that hold the mass, of which only the least likely are in order, likeliest first.

    Sorting a vocabulary takes ten times as long as counting what lies in bins of logits.
    """
    below = -np.log(np.maximum(weights, np.exp(-_FARTHEST)))
    bins = np.minimum(below * (_BINS / _FARTHEST), _BINS - 1).astype(np.intp)
    held = np.cumsum(np.bincount(bins, weights, _BINS))
    last = min(int(np.searchsorted(held, mass, side="left")), _BINS - 1)
    edge = np.flatnonzero(bins == last)
    edge = edge[np.argsort(-logits[edge], kind="stable")]
    return np.concatenate([np.flatnonzero(bins < last), edge])


def place_of_first(weights: NDArray[np.floating[Any]], chances: NDArray[np.float64]) -> list[int]:
    """
    Draw a place of each row by its weights.

    Each token waits for a random time, as long as it is unlikely, and the first one wins (the
    exponential race, or Gumbel-max trick). A place in the sum of all weights would do too, but
    logits differ in their last bits with the batch that they are computed in, and of a
    vocabulary that sum by thousands of tokens: a seed would not draw the same again.

    Args:
        weights: (rows, places), of which one of each row is above 0.
        chances: (rows, places), as :func:`uniform` gives them.
    """
    soonest = weights / chances  # no later than -log(1 - chance) says: few need that
    rows, first = np.arange(len(weights)), soonest.argmax(1)
    bound = weights[rows, first] / -np.log1p(-chances[rows, first])
    row, place = np.nonzero(soonest >= bound[:, None])
    exact = weights[row, place] / -np.log1p(-chances[row, place])
    drawn: list[int] = first.tolist()
    most = [0.0] * len(drawn)
    for r, p, value in zip(row.tolist(), place.tolist(), exact.tolist(), strict=True):
        if value > most[r]:
            most[r], drawn[r] = value, p
    return drawn


__all__ = ["finite", "likeliest", "nucleus", "place_of_first", "uniform"]
