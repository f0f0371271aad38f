"""Softmax and its logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.op_info import Array


def softmax(x: Array, dim: int = -1) -> Array:
    """Shares of the exponentials."""
    if x.shape[dim] == 0:
        return x
    e = np.exp(x - x.max(dim, keepdims=True))
    return np.asarray(e / e.sum(dim, keepdims=True))


def _log_softmax(x: Array, dim: int = -1) -> Array:
    if x.shape[dim] == 0:
        return x
    below = x - x.max(dim, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(dim, keepdims=True)))


_ROWS = at_any_rank(
    Recipe(
        {"x": T("r s c")},
        ({}, {"dim": 0}, {"dim": -2}),
        deep={"r": 1, "s": 1, "c": 2100},
        extreme=True,
    ),
    least=1,
)
OPS: Final = {
    "softmax": OpInfo(softmax, _ROWS),
    "log_softmax": OpInfo(_log_softmax, _ROWS),
}
