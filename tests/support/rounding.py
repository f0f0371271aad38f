"""Random numbers of a dtype, and what a result of that dtype may be off by."""

from __future__ import annotations

import numpy as np

from propolis import dtypes


UNIT = {
    dtypes.f64: 2.0**-53,
    dtypes.f32: 2.0**-24,
    dtypes.f16: 2.0**-11,
    dtypes.bf16: 2.0**-8,
    dtypes.f8e4m3: 2.0**-4,
    dtypes.f8e5m2: 2.0**-3,
}
SMALLEST = {dtypes.f16: 2.0**-24, dtypes.f8e4m3: 2.0**-9, dtypes.f8e5m2: 2.0**-16}


def normal(dtype, *shape, seed=0):
    """Random numbers of a dtype, of a size that sums stay within its range."""
    numbers = np.random.default_rng([seed, *shape]).normal(0, 0.5, shape)
    return numbers.astype(dtype.numpy)


def judge_sums(actual, expected, terms, dtype):
    """
    Elements are off by the result's rounding, and what sums in f32 (f64) lose.

    Args:
        actual: the device's.
        expected: in f64.
        terms: the sums of their absolute values.
        dtype: what is judged.
    """
    assert actual.dtype == dtype.numpy
    assert expected.shape == actual.shape
    wide = UNIT[dtypes.f64 if dtype is dtypes.f64 else dtypes.f32]
    allowed = UNIT[dtype] * np.abs(expected) * 1.25 + SMALLEST.get(dtype, 0)
    allowed += 32 * wide * terms
    off = np.abs(actual.astype(np.float64) - expected)
    assert (off <= allowed).all(), f"off by {(off / allowed).max():.3g} of what is allowed"


def judge_rounded_row(out, x, w, together=32):
    """
    Products of a row that is rounded to 16 bits, some numbers with a scale, with rows of w in f64.

    Each number is off by half a step of its part's at most, and sums by what f32 loses.

    Args:
        out: the device's.
        x: the row.
        w: the rows of weights.
        together: numbers that share a scale.
    """
    wide = x.astype(np.float64)
    padded = np.pad(np.abs(wide), (0, -wide.size % together)).reshape(-1, together)
    step = padded.max(axis=1, keepdims=True) / (127 * 256)
    lost = np.broadcast_to(0.51 * step, (step.size, together)).reshape(-1)[: wide.size]
    allowed = np.abs(w) @ (lost + 2.0**-19 * np.abs(wide)) + 1e-44
    assert (np.abs(out - w @ wide) <= allowed).all()
