"""Mixtures of experts: who is chosen, and products with the weights of the chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.families.softmax import softmax
from propolis_conformance.families.sort import order
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _moe_gate(logits: Array, k: int, *, renormalize: bool = True) -> tuple[Array, Array]:
    experts = np.take(order(logits, descending=True), np.arange(k), -1)
    shares = np.take_along_axis(softmax(logits), experts, -1)
    if renormalize:
        shares = shares / shares.sum(-1, keepdims=True)
    return shares, experts


_GATES: AttributeSets = ({"k": 1}, {"k": 2, "renormalize": False}, {"k": 3})
OPS["moe_gate"] = OpInfo(
    _moe_gate, (Recipe({"logits": T("m e")}, _GATES, ties=True, special=False),)
)


def _moe_linear(x: Array, w: Array, experts: Array) -> Array:
    if not experts.size:
        return np.zeros((*experts.shape, w.shape[1]))
    return np.asarray((w[experts] @ x[..., None])[..., 0])


def _products(domain: str) -> tuple[Recipe, ...]:
    experts = T("m j", "i64", "index:e")
    return tuple(
        Recipe({"x": T(dims, domain=domain), "w": T("e n k"), "experts": experts})
        for dims in ("m j k", "m 1 k")
    )


OPS["moe_linear"] = OpInfo(_moe_linear, _products("values"))
# With what the blocks stand for; of infinities as in qmatmul.
OPS["moe_qmatmul"] = OpInfo(_moe_linear, _products("bounded"))
