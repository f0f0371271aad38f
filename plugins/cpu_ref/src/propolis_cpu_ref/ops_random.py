"""Philox numbers: uniform and normal."""

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
]
