"""Casts: integers saturate floats, and wrap integers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.integers import saturated
from propolis_conformance.integers import wrapped
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis_conformance.op_info import Array


def _cast(x: Array, dtype: DType) -> Array:
    if dtype.is_float:
        return x.astype(np.float64) if x.dtype.kind == "f" or dtype.name != "f64" else x
    kind = dtype.numpy
    change = saturated if x.dtype.kind == "f" else (lambda n, kind: wrapped(int(n), kind))
    return np.array([change(n, kind) for n in x.flat], kind).reshape(x.shape)


_X = {"x": T("r s c")}
_PLAIN = tuple({"dtype": d} for d in dtypes.ALL if d in dtypes.PLAIN)
_RECIPES = (
    *at_any_rank(Recipe(_X, _PLAIN, ties=True)),
    # Every pair, with what overflows and what rounds to nothing.
    *(Recipe(_X, (a,), extreme=True) for a in _PLAIN),
)
OPS: Final = {"cast": OpInfo(_cast, _RECIPES)}
