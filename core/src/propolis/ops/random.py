"""
Random numbers that are the same on every device, and what is drawn by them.

Element ``i`` (in row-major order) of a tensor is made from lane ``i % 4`` of Philox
4x32-10 (Salmon et al. 2011) with the 64-bit seed as its key and the 128-bit counter
``offset + i // 4``: nothing is stored, and nothing depends on how threads are laid out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.opspec.infer import expect
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
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


@op({"logits": FLOATS}, tolerance=dict.fromkeys(FLOATS, EXACT))
def draw(
    logits: Tensor,
    keys: Tensor,
    temperature: Tensor,
    /,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    k: int = 0,
) -> Meta:
    """
    Draw one place of each row by the softmax of its logits, as language models draw tokens.

    The weight of a place is ``w = exp((x - max) / temperature)``; where the largest is infinite, 1
    of those that are alike and 0 of the others.  Places come in order, likeliest first, of equal
    ones the first.  Each cut looks at what the one before left: the ``top_k`` first; of these the
    fewest whose weights reach ``top_p`` times their sum; of these the ones that weigh ``min_p``.
    The first one always stays.

    Of those that are left the one with the largest ``w / -log(1 - u)`` is drawn (the exponential
    race, or Gumbel-max trick).  ``u`` is ``(h + 0.5) * 2**-32`` with a hash ``h`` of key and place,
    so that it does not depend on what else there is: the place is mixed with the lower half of
    the key and then with the upper one; to mix is to add the half, and to do as MurmurHash3 ends
    (``fmix32``, Appleby 2011).  In rounding alone devices may differ.

    Args:
        logits: (rows, places), a float dtype; computed in f32 or wider.
        keys: (rows,), i64, whose 64 bits count; another one for each draw.
        temperature: (rows,), f32, finite; the first in order is drawn where it is 0 or less.
        top_k: (rows,), i32; all places are candidates where it is 0 or less, or None.
        top_p: (rows,), f32; of all weight where it is 1 or more, or None.
        min_p: (rows,), f32; 0 where it is None.
        k: no row has more candidates than so many; 0 for no such bound.

    Returns:
        (rows,), i64.  The place of the first NaN, where a row has one.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together, or rows are empty.
        OpError: ``k`` is outside [0, 2**63).
    """
    kinds = {"keys": dtypes.i64, "temperature": dtypes.f32, "top_k": dtypes.i32}
    given = {"keys": keys, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    per_row = {n: t for n, t in {**given, "min_p": min_p}.items() if t is not None}
    fits = len(logits.shape) == 2 and (logits.shape[1] > 0 or not logits.shape[0])
    fits = fits and all(one.shape == logits.shape[:1] for one in per_row.values())
    expect(
        "draw", fits, "logits is (rows, places), the others are (rows,)", logits=logits, **per_row
    )
    for name, one in per_row.items():
        wanted = kinds.get(name, dtypes.f32)
        if one.dtype is not wanted:
            msg = f"draw: {name} is {one.dtype}; supported: {wanted}"
            raise DTypeError(msg)
    if not 0 <= k < 1 << 63:
        msg = f"draw: k {k} is outside [0, 2**63)"
        raise OpError(msg)
    return logits.shape[:1], dtypes.i64


def _check(name: str, seed: int, offset: int) -> None:
    for what, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 1 << 64:
            msg = f"{name}: {what} {value} is outside [0, 2**64)"
            raise OpError(msg)
