"""Random numbers: Philox 4x32-10 (Salmon et al. 2011) in Python's integers; draws by softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis_conformance.families.sort import order
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


def _chance(key: int, place: int) -> float:
    """The hash of a place, as a number in (0, 1)."""
    h = place & _LOW
    for half in (key & _LOW, key >> 32 & _LOW):
        h = h + half & _LOW
        h = (h ^ h >> 16) * 0x85EBCA6B & _LOW
        h = (h ^ h >> 13) * 0xC2B2AE35 & _LOW
        h ^= h >> 16
    return (h + 0.5) / 2.0**32


def _draw(
    logits: Array,
    keys: Array,
    temperature: Array,
    top_k: Array | None = None,
    top_p: Array | None = None,
    min_p: Array | None = None,
    k: int = 0,
) -> Array:
    drawn = np.zeros(len(logits), np.int64)
    for row, places in enumerate(order(logits, descending=True).tolist()):
        x, heat = [float(logits[row, place]) for place in places], float(temperature[row])
        limits = [n for n in (k, 0 if top_k is None else int(top_k[row])) if n > 0]
        left = min([len(places), *limits])
        if math.isnan(x[0]) or heat <= 0:
            left = 1
        weights = [1.0 if one == x[0] else math.exp((one - x[0]) / heat) for one in x[:left]]
        share = 1.0 if top_p is None else float(top_p[row])
        if share < 1:
            sums = np.cumsum(weights)
            left = 1 + sum(bool(before < share * sums[-1]) for before in sums[:-1])
        least = 0.0 if min_p is None else float(min_p[row])
        left = max(1, sum(one >= least for one in weights[:left]))
        race = [
            weight / -math.log1p(-_chance(int(keys[row]), place))
            for weight, place in zip(weights[:left], places, strict=False)
        ]
        drawn[row] = places[max(range(left), key=race.__getitem__)]
    return drawn


_DRAWN = {
    "logits": T("r n"),
    "keys": T("r", "i64"),
    "temperature": T("r", "f32", "positive"),
    "top_k": T("r", "i32"),
    "top_p": T("r", "f32", "positive"),
    "min_p": T("r", "f32", "positive"),
}
_NONE = {"top_k": None, "top_p": None, "min_p": None}
_CUTS: AttributeSets = (
    {},
    _NONE,
    {**_NONE, "k": 3},
    {"top_p": None, "min_p": None},
    {"top_k": None, "min_p": None},
    {"top_p": None, "k": 2},
)
OPS["draw"] = OpInfo(_draw, (Recipe(_DRAWN, _CUTS, deep={"n": 4099}, nonempty="n", ties=True),))
