"""Philox numbers, uniform and normal, and places drawn by softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee


if TYPE_CHECKING:
    from propolis import Tensor

# The multipliers and key increments of Philox 4x32 (Salmon et al. 2011, table 2).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


@ieee
def uniform(
    target: Tensor,
    /,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """``low + u * (high - low)``, computed in f32 (f64 for f64)."""
    kind = _kind(target)
    u = _unit(words(target.numel, seed, offset)).astype(kind)
    values = kind(low) + u * kind(high - low)
    target.array[...] = values.reshape(target.shape)


@ieee
def normal(
    target: Tensor,
    /,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """Pairs of uniform numbers turned into pairs of normal ones, in f32 (f64 for f64)."""
    kind = _kind(target)
    pairs = words(target.numel, seed, offset, whole=True).reshape(-1, 2)
    radius = np.sqrt(kind(-2) * np.log((_unit(pairs[:, 0]) + 2.0**-24).astype(kind)))
    angle = (_unit(pairs[:, 1]) * (2 * np.pi)).astype(kind)
    values = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    values = kind(mean) + values[: target.numel] * kind(std)
    target.array[...] = values.reshape(target.shape)


@ieee
def draw(
    out: Tensor,
    logits: Tensor,
    keys: Tensor,
    temperature: Tensor,
    /,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    k: int = 0,
) -> None:
    """The exponential race of those that are left, row by row, in f64."""
    count, wide = logits.shape[1], logits.array.astype(np.float64)
    for row, x in enumerate(wide):
        order = np.argsort(-x, kind="stable")
        first, heat = int(np.argmax(x)), float(temperature.array[row])  # a NaN is the largest
        if np.isnan(x[first]) or not heat > 0:
            out.array[row] = first
            continue
        weights = np.where(x == x[first], 1.0, np.exp((x - x[first]) / heat))[order]
        limit = 0 if top_k is None else int(top_k.array[row])
        weights = (
            weights[: min(count, *(n for n in (limit, k) if n > 0))] if limit > 0 or k else weights
        )
        mass = 1.0 if top_p is None else float(top_p.array[row])
        if mass < 1:
            before = np.cumsum(weights) - weights
            weights[1:][before[1:] >= mass * weights.sum()] = 0
        if min_p is not None:
            weights[1:][weights[1:] < float(min_p.array[row])] = 0
        ids = order[: weights.size]
        race = weights / -np.log1p(-_chances(int(keys.array[row]), ids))
        out.array[row] = ids[np.argmax(race)]


def _chances(key: int, ids: np.ndarray) -> np.ndarray:
    """A number in (0, 1) of each place."""
    bits = ids.astype(np.uint32)
    for half in (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF):
        bits = bits + np.uint32(half)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            bits ^= bits >> np.uint32(shift)
            bits *= np.uint32(factor)
        bits ^= bits >> np.uint32(16)
    return (bits.astype(np.float64) + 0.5) * 2.0**-32


def words(count: int, seed: int, offset: int, *, whole: bool = False) -> np.ndarray:
    """
    The first ``count`` 32-bit words of a stream, as u64.

    Args:
        count: how many.
        seed: the 64-bit key.
        offset: counters to skip.
        whole: give all words of the last counter.
    """
    blocks = -(-count // 4)
    counters = np.arange(blocks, dtype=np.uint64) + np.uint64(offset)
    # A sum that passes 2**64 carries into the upper half of the 128-bit counter.
    carry = (counters < np.uint64(offset)).astype(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = counters & mask, counters >> half, carry, np.zeros_like(carry)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ np.uint64(k0),
            p1 & mask,
            (p0 >> half) ^ c3 ^ np.uint64(k1),
            p0 & mask,
        )
        k0, k1 = (k0 + INCREMENTS[0]) & 0xFFFFFFFF, (k1 + INCREMENTS[1]) & 0xFFFFFFFF
    lanes = np.stack([c0, c1, c2, c3], axis=1).reshape(-1)
    return lanes if whole else lanes[:count]


def _unit(word: np.ndarray) -> np.ndarray:
    """The upper 24 bits as a fraction in [0, 1); f64, exact."""
    return (word >> np.uint64(8)).astype(np.float64) * 2.0**-24


def _kind(target: Tensor) -> type[np.floating]:
    return np.float64 if target.array.dtype == np.float64 else np.float32


OPS = [
    OpImpl(op="uniform", fn=uniform, dtypes=FLOATS),
    OpImpl(op="normal", fn=normal, dtypes=FLOATS),
    OpImpl(op="draw", fn=draw, dtypes=FLOATS),
]
