"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_DEEP = {"m": 1, "k": 2100, "n": 3}
_LARGE = {"b": 2, "m": 201, "k": 67, "n": 139}
_WEIGHTS = {"w": T("n k"), "bias": T("n", "=sum")}
_BIASED: Final[tuple[dict[str, None], ...]] = ({}, {"bias": None})


def matmul(a: Array, b: Array) -> Array:
    """Sums of products; of integers in 64 bits, which wrap to fewer as sums in fewer do."""
    if a.dtype.kind == "i":
        a, b = a.astype(np.int64), b.astype(np.int64)
    return np.asarray(a @ b)


OPS["matmul"] = OpInfo(
    matmul,
    (
        Recipe({"a": T("b m k"), "b": T("b k n")}, deep=_DEEP, large=_LARGE),
        Recipe({"a": T("b m k"), "b": T("k n")}),
        Recipe({"a": T("m k"), "b": T("b k n")}),
        Recipe({"a": T("h 1 m k"), "b": T("b k n")}),
        Recipe({"a": T("b h m k"), "b": T("1 h k n")}, brief=True),
        # Rows enough for those who leave few to others.
        Recipe({"a": T("m*32 k"), "b": T("k n")}),
    ),
)


def linear(x: Array, w: Array, bias: Array | None = None) -> Array:
    """Rows times the rows of a weight."""
    y = matmul(x, w.T)
    return np.asarray(y if bias is None else y + bias)


OPS["linear"] = OpInfo(
    linear,
    (
        Recipe({"x": T("b m k"), **_WEIGHTS}, _BIASED, deep=_DEEP, large=_LARGE),
        Recipe({"x": T("k"), **_WEIGHTS}, _BIASED),
        Recipe({"x": T("h b m k"), **_WEIGHTS}, _BIASED, brief=True),
        # One row, which may be loaded by whole runs.
        Recipe({"x": T("1 k*8"), "w": T("n k*8"), "bias": T("n")}, _BIASED),
        # Of what matrix instructions take at once: few rows, and more.
        Recipe({"x": T("m*2 k*160"), "w": T("n*8 k*160"), "bias": T("n*8")}, _BIASED),
        Recipe({"x": T("m*4 k*96"), "w": T("n*8 k*96"), "bias": T("n*8")}, _BIASED),
        Recipe({"x": T("m*8 k*32"), "w": T("n*8 k*32"), "bias": T("n*8")}),
        Recipe({"x": T("m*32 k*32"), "w": T("n k*32"), "bias": T("n")}),
        # Rows enough for those who leave few to others.
        Recipe({"x": T("m*32 k"), **_WEIGHTS}, _BIASED),
    ),
)
