"""Random numbers: Philox 4x32-10 (Salmon et al. 2011) in Python's integers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_TARGET = {"target": T("r s c")}
_SEEDS: AttributeSets = (
    {"seed": 7},
    {"seed": 2**63, "offset": 5},
    {"seed": 1, "offset": 2**64 - 1},
)
_LOW = 2**32 - 1


def philox(counter: int, seed: int) -> list[int]:
    """The four words of a 128-bit counter under a 64-bit seed."""
    c = [counter >> 32 * i & _LOW for i in range(4)]
    keys = [seed & _LOW, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ keys[0], right & _LOW, left >> 32 ^ c[3] ^ keys[1], left & _LOW]
        keys = [(keys[0] + 0x9E3779B9) & _LOW, (keys[1] + 0xBB67AE85) & _LOW]
    return c


def _units(count: int, seed: int, offset: int) -> list[int]:
    """The upper 24 bits of each word, whole counters of them."""
    return [w >> 8 for i in range(-(-count // 4)) for w in philox(offset + i, seed)]


def _uniform(
    target: Array, low: float = 0.0, high: float = 1.0, *, seed: int, offset: int = 0
) -> Array:
    u = np.array(_units(target.size, seed, offset)[: target.size], np.float64) * 2.0**-24
    return np.asarray(low + u * (high - low)).reshape(target.shape)


OPS["uniform"] = OpInfo(
    _uniform, (Recipe(_TARGET, (*_SEEDS, {"seed": 3, "low": -2.0, "high": 5.0}), overwrites=True),)
)


def _normal(
    target: Array, mean: float = 0.0, std: float = 1.0, *, seed: int, offset: int = 0
) -> Array:
    words = _units(target.size, seed, offset)
    drawn = []
    for first, second in zip(words[::2], words[1::2], strict=True):
        r, t = math.sqrt(-2 * math.log((first + 1) * 2.0**-24)), 2 * math.pi * second * 2.0**-24
        drawn += [mean + std * r * math.cos(t), mean + std * r * math.sin(t)]
    return np.array(drawn[: target.size], np.float64).reshape(target.shape)


OPS["normal"] = OpInfo(
    _normal, (Recipe(_TARGET, (*_SEEDS, {"seed": 3, "mean": 1.0, "std": 2.5}), overwrites=True),)
)
