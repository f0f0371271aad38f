"""What products with weights in blocks may lose, whose activations are rounded to 8 bits."""

from __future__ import annotations

import operator
from types import MappingProxyType
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import numpy as np
import pytest

from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """An op, its tensors, the op in numpy with activations rounded by ``of``, and which result."""

    op: Any
    given: list[Array]
    f: Callable[..., Any]
    result: Callable[[Any], Array]
    more: Mapping[str, Any] = MappingProxyType({})


def in_bits(x: Array, bits: int) -> Array:
    """``x`` in blocks of 32 that share a scale; 0 bits are none at all."""
    if not bits:
        return x * 0
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.asarray((np.rint(blocks / scale) * scale).reshape(x.shape))


def qmatmul(x: Array, w: Array) -> Case:
    """A plain product."""
    return Case(ops.qmatmul, [x, w], lambda x, w, *, of=np.asarray: of(x) @ w.T, np.asarray)


def moe(x: Array, w: Array) -> Case:
    """Each row by two of four experts' weights."""
    experts = np.arange(2 * len(x)).reshape(-1, 2) % 4

    def f(x: Array, w: Array, experts: Array, *, of: Any = np.asarray) -> Any:
        return np.einsum("tjk,tjok->tjo", of(x), w[experts])

    return Case(ops.moe_qmatmul, [x[:, None], w.reshape(4, -1, w.shape[1]), experts], f, np.asarray)


def _normed(
    x: Array, residual: Array, weight: Array, w: Array, eps: float = 1e-5, *, of: Any = np.asarray
) -> tuple[Array, Array]:
    total = x + residual
    return total, of(total / np.sqrt((total * total).mean(-1, keepdims=True) + eps) * weight) @ w.T


def normed(x: Array, w: Array) -> Case:
    """What is rounded is the norm of a sum."""
    given = [x, x[::-1], np.ones(x.shape[1]), w]
    return Case(ops.add_rms_norm_qmatmul, given, _normed, operator.itemgetter(1))


def turned(x: Array, w: Array) -> Case:
    """Nothing is rotated: of all positions the cosine is 1."""
    _, [*rows, w], *_ = normed(x, w)
    tables = [np.arange(len(x))[None], np.ones((len(x), 4)), np.zeros((len(x), 4))]

    def f(
        x: Array,
        residual: Array,
        weight: Array,
        w: Array,
        *tables: Any,
        of: Any = np.asarray,
        **_: Any,
    ) -> Any:
        eps = tables[3] if len(tables) > 3 else 1e-5
        return _normed(x, residual, weight, w, eps, of=of)

    rows = [rows[0][None], rows[1][None], rows[2]]
    how = {"heads": 2, "head_dim": 8}
    case = ops.add_rms_norm_qmatmul_rope
    return Case(case, [*rows, w, *tables], f, operator.itemgetter(1), how)


CASES = [qmatmul, moe, normed, turned]


def activations(kind: str, depth: int, rng: np.random.Generator) -> Array:
    """Rows like normal numbers, with few far larger than the others, and with one large channel."""
    x = rng.normal(size=(40, depth)) ** (3 if kind == "few" else 1)
    x[:, 5] *= 200 if kind == "channel" else 1
    return x


def worst(case: Case, bits: int, *, exact: bool = False) -> float:
    """The largest error of so many bits, as a share of what is allowed."""
    op, given, f, result, more = case
    terms = (op.magnitude if exact else op.rounded)(f, *given, **more)
    truth, off = result(f(*given, **more)), result(f(*given, of=lambda x: in_bits(x, bits), **more))
    allowed = op.allowed(dtypes.f32, truth, result(terms), exact=exact)
    return float((np.abs(off - truth) / allowed).max())


@pytest.mark.parametrize("depth", [32, 64, 2048])
@pytest.mark.parametrize("kind", ["normal", "few", "channel"])
@pytest.mark.parametrize("of", CASES)
def test_eight_bits_are_allowed_and_three_are_not(of, kind, depth):
    """However small beside what sets its scale; beside a large channel zeros are not."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(-1, 1, (32, depth))
    cases = [of(activations(kind, depth, rng), weights) for _ in range(20 if depth < 100 else 4)]
    assert max(worst(case, bits=8) for case in cases) < 1
    if kind != "channel":
        assert max(worst(case, bits=3) for case in cases) > 1
    assert min(worst(case, bits=0) for case in cases) > 5


@pytest.mark.parametrize("of", CASES)
def test_who_does_not_round_has_no_more(of):
    """Fifteen bits are too few for who says that activations stay as they are."""
    rng = np.random.default_rng(0)
    case = of(activations("few", 2048, rng), rng.uniform(-1, 1, (32, 2048)))
    assert worst(case, bits=15, exact=True) > 1
