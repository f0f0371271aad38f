"""Choice between two tensors."""

from __future__ import annotations

from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.inputs import at_any_rank
from propolis_conformance.op_info import OpInfo


_CONDITION = T("r c", domain="index:2")
_WHERE = (
    *at_any_rank(
        Recipe({"condition": _CONDITION, "a": T("r c"), "b": T("r c", "=a")}, extreme=True)
    ),
    Recipe({"condition": T("r 1", domain="index:2"), "a": T("c"), "b": T("r c", "=a")}),
    Recipe({"condition": T("s r c"), "a": T("1"), "b": T("r 1", "=a")}),
)
OPS: Final = {"where": OpInfo(lambda condition, a, b: np.where(condition != 0, a, b), _WHERE)}
