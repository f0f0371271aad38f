"""What products with weights in blocks may lose, whose activations are rounded to 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import pytest

from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]


def _in_bits(x: Array, bits: int) -> Array:
    """``x`` in blocks of 32 that share a scale."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.asarray((np.rint(blocks / scale) * scale).reshape(x.shape))


def _qmatmul(rng: np.random.Generator, power: int) -> tuple[Any, list[Array], Callable[..., Any]]:
    """The op, rows with elements larger than the others by such a power, and how it is done."""
    x, w = rng.normal(size=(40, 64)) ** power, rng.uniform(-1, 1, (32, 64))
    return ops.qmatmul, [x, w], lambda x, w, *, of=np.asarray: of(x) @ w.T


def _moe(rng: np.random.Generator, power: int) -> tuple[Any, list[Array], Callable[..., Any]]:
    _, (x, w), _ = _qmatmul(rng, power)
    experts = rng.integers(0, 4, (40, 2))
    given = [x[:, None], w.reshape(4, 8, 64), experts]
    return (
        ops.moe_qmatmul,
        given,
        lambda x, w, experts, *, of=np.asarray: np.einsum("tjk,tjok->tjo", of(x), w[experts]),
    )


def _normed(rng: np.random.Generator, power: int) -> tuple[Any, list[Array], Callable[..., Any]]:
    _, (_, w), _ = _qmatmul(rng, power)
    x, residual = rng.normal(size=(2, 40, 64))

    def f(
        x: Array,
        residual: Array,
        weight: Array,
        w: Array,
        eps: float = 1e-5,
        *,
        of: Any = np.asarray,
    ) -> Any:
        total = x + residual
        normed = total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight
        return total, of(normed) @ w.T

    return ops.add_rms_norm_qmatmul, [x, residual, rng.normal(size=64) ** power, w], f


def _worst(op: Any, given: list[Array], f: Callable[..., Any], bits: int) -> float:
    """The largest error of so many bits, as a share of what is allowed."""
    truth, terms = f(*given), op.magnitude(f, *given)
    found = f(*given, of=lambda x: _in_bits(x, bits))
    if isinstance(truth, tuple):
        (_, truth), (_, terms), (_, found) = truth, terms, found
    allowed = op.allowed(dtypes.f32, truth, terms, exact=False)
    return float((np.abs(found - truth) / allowed).max())


@pytest.mark.parametrize("case", [_qmatmul, _moe, _normed])
def test_eight_bits_are_allowed(case):
    """Also of rows that are mostly small beside their largest element, which sets the scale."""
    rng = np.random.default_rng(0)
    for power in (1, 3):
        assert max(_worst(*case(rng, power), bits=8) for _ in range(100)) < 1


@pytest.mark.parametrize("case", [_qmatmul, _moe, _normed])
def test_five_bits_are_not(case):
    """What is allowed for the scale hides no such error."""
    rng = np.random.default_rng(0)
    assert min(_worst(*case(rng, power=1), bits=5) for _ in range(100)) > 1
