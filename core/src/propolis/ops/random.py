"""
Random numbers that are the same on every device.

Element ``i`` (in row-major order) of a tensor is made from lane ``i % 4`` of Philox
4x32-10 (Salmon et al. 2011) with the 64-bit seed as its key and the 128-bit counter
``offset + i // 4``: nothing is stored, and nothing depends on how threads are laid out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis.dtypes import FLOATS
from propolis.errors import OpError
from propolis.opspec.spec import op
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import ROUNDED


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


def _uniform_terms(
    f: Callable[..., Any], target: Array, low: float = 0.0, high: float = 1.0, **drawn: int
) -> float:
    """Both ends of the range."""
    return abs(low) + abs(high)


@op({"target": FLOATS}, mutates=True, tolerance=ROUNDED, magnitude=_uniform_terms)
def uniform(
    target: Tensor,
    /,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """
    Fill with ``low + u * (high - low)``, in place.

    ``u`` is the word's upper 24 bits times 2**-24, so it is in [0, 1) and exact in
    f32; the result is computed in f32 and rounded once (f64 in f64, from the same u).

    Args:
        target: any shape, any strides, a float dtype.
        low: the least value.
        high: the greatest, which rounding may reach.
        seed: in [0, 2**64).
        offset: counters to skip, in [0, 2**64): a draw of n elements takes ceil(n / 4).

    Raises:
        DTypeError: the target is not a float.
        OpError: seed or offset is out of range.
    """
    _check("uniform", seed, offset)


def _normal_terms(
    f: Callable[..., Any], target: Array, mean: float = 0.0, std: float = 1.0, **drawn: int
) -> float:
    """
    The angle, up to 2 pi, is rounded: half an ulp, 4 units, times the largest radius, 5.8.

    Much is lost where the cosine is near 0.
    """
    return abs(mean) + 2 * abs(std)


@op({"target": FLOATS}, mutates=True, tolerance=RELATIVE, magnitude=_normal_terms)
def normal(
    target: Tensor,
    /,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int,
    offset: int = 0,
) -> None:
    """
    Fill with normally distributed numbers, in place, by Box and Muller (1958).

    Lanes 0 and 1 (2 and 3) of a counter give ``r * cos(t)`` and ``r * sin(t)`` with
    ``r = sqrt(-2 log(u0))`` and ``t = 2 pi u1``; ``u0`` is (the word's upper 24 bits +
    1) times 2**-24, in (0, 1], and ``u1`` as in ``uniform``.

    Args:
        target: any shape, any strides, a float dtype.
        mean: of the distribution.
        std: its standard deviation.
        seed: in [0, 2**64).
        offset: counters to skip, in [0, 2**64): a draw of n elements takes ceil(n / 4).

    Raises:
        DTypeError: the target is not a float.
        OpError: seed or offset is out of range.
    """
    _check("normal", seed, offset)


def _check(name: str, seed: int, offset: int) -> None:
    for what, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 1 << 64:
            msg = f"{name}: {what} {value} is outside [0, 2**64)"
            raise OpError(msg)
