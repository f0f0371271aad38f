"""
Elementwise ops of one tensor, and the gated activations of feed-forward layers.

All compute f16, bf16 and f8 in f32 and round once; NaN and infinities follow IEEE: the
activations that multiply ``x`` by a share of it (silu, gelu) give NaN for -inf, as in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import FLOATS
from propolis.dtypes import PLAIN
from propolis.dtypes import DType
from propolis.errors import OpError
from propolis.ops.binary import mul
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import DEFAULT_TOLERANCE
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import Op
from propolis.opspec.spec import op
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import Magnitude
from propolis.opspec.tolerance import Tolerance


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


_CONTRACT = """

Args:
    x: any shape, any strides, {allowed}.

Returns:
    Shape and dtype of ``x``.

Raises:
    DTypeError: ``x`` has another dtype.
"""


# What divides by an exponential may be 0 where that overflows f32, below exp(-88).
_SHARE = {
    **RELATIVE,
    dtypes.f32: Tolerance(1e-5, 2.0**-119),
    dtypes.bf16: Tolerance(1.6e-2, 2.0**-119),
}


def _unary(
    name: str,
    meaning: str,
    allowed: frozenset[DType] = FLOATS,
    tolerance: Mapping[DType, Tolerance] = DEFAULT_TOLERANCE,
    magnitude: Magnitude | None = None,
) -> Op[[Tensor]]:
    """Declare an op that differs from its siblings in the formula alone."""

    def infer(x: Tensor, /) -> Meta:
        return x.layout.shape, x.dtype

    infer.__name__ = name
    kinds = "a float dtype" if allowed is FLOATS else "any plain dtype"
    infer.__doc__ = meaning + _CONTRACT.format(allowed=kinds)
    # What takes integers too is exact, or one product that f32 or f64 rounds correctly.
    if allowed is PLAIN:
        tolerance = dict.fromkeys(PLAIN, EXACT)
    return op({"x": allowed}, elementwise=True, tolerance=tolerance, magnitude=magnitude)(infer)


_VANISHES = "In f32 and bf16, results below 2**-119 may be 0: there the exponential overflows."


def _argument(f: Callable[..., Any], x: Array, up: Array | float = 1.0) -> Array:
    """
    GELU is a sum of x/2 and x/2 times a function of x, which cancel below 0.

    And what halves the least numbers of f32 rounds them, before ``up`` multiplies them.
    """
    return np.asarray(np.maximum(np.abs(x), 2.0**-126) * np.abs(up))


def _up(f: Callable[..., Any], gate: Array, up: Array) -> Array:
    """What ``silu(gate)`` may lose, ``up`` multiplies."""
    return np.abs(up)


exp = _unary("exp", "``e ** x``.", tolerance=RELATIVE)
expm1 = _unary("expm1", "``e ** x - 1``, without cancellation for small ``x``.", tolerance=RELATIVE)
log = _unary("log", "The natural logarithm; of 0 it is -inf, of negative numbers NaN.")
log1p = _unary(
    "log1p",
    "``log(1 + x)``, without cancellation for small ``x``; of -1 it is -inf, below NaN.",
    tolerance=RELATIVE,
)
sin = _unary("sin", "The sine of radians.")
cos = _unary("cos", "The cosine of radians.")
tanh = _unary("tanh", "The hyperbolic tangent.")
sqrt = _unary("sqrt", "The square root; of negative numbers NaN.", tolerance=RELATIVE)
rsqrt = _unary("rsqrt", "``1 / sqrt(x)``; of 0 it is inf.", tolerance=RELATIVE)
recip = _unary("recip", "``1 / x``; of 0 it is inf with the sign of the zero.", tolerance=RELATIVE)
erf = _unary("erf", "The error function.")
sigmoid = _unary("sigmoid", f"``1 / (1 + exp(-x))``.\n\n{_VANISHES}", tolerance=_SHARE)
silu = _unary(
    "silu",
    f"``x / (1 + exp(-x))``: SiLU, or swish (Elfwing et al. 2017).\n\n{_VANISHES}",
    tolerance=_SHARE,
)
gelu = _unary(
    "gelu",
    "``x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))``: the tanh form of GELU\n"
    "(Hendrycks, Gimpel 2016).",
    tolerance=RELATIVE,
    magnitude=_argument,
)
gelu_erf = _unary(
    "gelu_erf",
    "``x/2 * (1 + erf(x / sqrt(2)))``: GELU, exactly.",
    tolerance=RELATIVE,
    magnitude=_argument,
)
quick_gelu = _unary(
    "quick_gelu",
    f"``x * sigmoid(1.702 * x)``: CLIP's approximation of GELU.\n\n{_VANISHES}",
    tolerance=_SHARE,
)
softplus = _unary("softplus", "``log(1 + exp(x))``, without overflow for large ``x``.")
abs = _unary("abs", "The absolute value; of an integer type's minimum, itself.", PLAIN)  # noqa: A001
neg = _unary("neg", "``-x``; integers wrap around.", PLAIN)
sqr = _unary("sqr", "``x * x``; integers wrap around.", PLAIN)
relu = _unary("relu", "``max(x, 0)``; NaN stays NaN.", PLAIN)
sign = _unary("sign", "-1, 0 or 1; NaN stays NaN.", PLAIN)
floor = _unary("floor", "The largest whole number not above ``x``.", PLAIN)
ceil = _unary("ceil", "The smallest whole number not below ``x``.", PLAIN)
trunc = _unary("trunc", "The whole number next to ``x`` on the side of 0.", PLAIN)
round = _unary("round", "The nearest whole number, ties to the even one, as IEEE rounds.", PLAIN)  # noqa: A001


@op({"x": FLOATS}, tolerance=RELATIVE, elementwise=True)
def powf(x: Tensor, /, exponent: float) -> Meta:
    """
    ``x ** exponent``; a negative ``x`` to a fraction is NaN.

    To one half it is the square root, as numpy and torch have it.

    Args:
        x: any shape, a float dtype.
        exponent: the power.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
    """
    return x.shape, x.dtype


@op({"x": FLOATS}, elementwise=True)
def elu(x: Tensor, /, alpha: float = 1.0) -> Meta:
    """
    ``x`` where positive, else ``alpha * (exp(x) - 1)`` (Clevert et al. 2015).

    Args:
        x: any shape, a float dtype.
        alpha: minus the limit for very negative ``x``.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not a float.
    """
    return x.shape, x.dtype


@op({"x": PLAIN}, tolerance=ROUNDED, elementwise=True)
def clamp(x: Tensor, /, low: float, high: float) -> Meta:
    """
    ``min(max(x, low), high)``; NaN stays NaN.

    Args:
        x: any shape, any plain dtype.
        low: the least value; of integers it is truncated and saturated first.
        high: the greatest value, not below ``low``.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is in a block format.
        OpError: ``low`` is above ``high``.
    """
    if not low <= high:
        msg = f"clamp: low {low} must not be above high {high}"
        raise OpError(msg)
    return x.shape, x.dtype


def _affine_terms(f: Callable[..., Any], x: Array, mul: float, add: float) -> Array:
    """The product and what is added to it may cancel."""
    return np.asarray(np.abs(x * mul) + np.abs(add))


@op({"x": PLAIN}, tolerance=ROUNDED, magnitude=_affine_terms, elementwise=True)
def affine(x: Tensor, /, mul: float, add: float) -> Meta:
    """
    ``x * mul + add``.

    Integers are multiplied and added as integers, with both scalars truncated and
    saturated to the dtype first; they wrap around.

    Args:
        x: any shape, any plain dtype.
        mul: the factor.
        add: what is added.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is in a block format.
    """
    return x.shape, x.dtype


@op(
    {"gate": FLOATS},
    tolerance=_SHARE,
    magnitude=_up,
    loss={dtype: tolerance.atol for dtype, tolerance in _SHARE.items()},
    elementwise=True,
)
def silu_mul(gate: Tensor, up: Tensor, /) -> Meta:
    """
    ``silu(gate) * up``, the SwiGLU of Shazeer (2020).

    What ``silu(gate)`` may lose, ``up`` multiplies: 2**-119 in f32 and bf16, where the
    exponential overflows; in other dtypes the last place of their least numbers.

    Args:
        gate: any shape, any float dtype; f16, bf16 and f8 are computed in f32.
        up: same shape and dtype.

    Returns:
        Shape and dtype of ``gate``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes differ.
    """
    return _gated("silu_mul", gate, up)


@op({"gate": FLOATS}, tolerance=RELATIVE, magnitude=_argument, elementwise=True)
def gelu_mul(gate: Tensor, up: Tensor, /) -> Meta:
    """
    ``gelu(gate) * up`` with the tanh form of GELU, the GeGLU of Shazeer (2020).

    What cancels below 0, ``up`` multiplies: some roundings of ``gate`` in f32.

    Args:
        gate: any shape, any float dtype; f16, bf16 and f8 are computed in f32.
        up: same shape and dtype.

    Returns:
        Shape and dtype of ``gate``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes differ.
    """
    return _gated("gelu_mul", gate, up)


@op({"gate": FLOATS}, tolerance=RELATIVE, magnitude=_argument, elementwise=True)
def gelu_erf_mul(gate: Tensor, up: Tensor, /) -> Meta:
    """
    ``gelu_erf(gate) * up``: the GeGLU of Shazeer (2020) with the exact GELU, as diffusers has it.

    What cancels below 0, ``up`` multiplies: some roundings of ``gate`` in f32.

    Args:
        gate: any shape, any float dtype; f16, bf16 and f8 are computed in f32.
        up: same shape and dtype.

    Returns:
        Shape and dtype of ``gate``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes differ.
    """
    return _gated("gelu_erf_mul", gate, up)


def _gated(name: str, gate: Tensor, up: Tensor) -> Meta:
    same_dtype(name, gate=gate, up=up)
    expect(name, gate.shape == up.shape, "gate and up must agree", gate=gate, up=up)
    return gate.shape, gate.dtype


# Devices whose plugins have the parts get these for nothing.


@silu_mul.decomposes(lambda gate: {silu: (gate,), mul: (gate,)})
def _silu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    mul.into(out, silu(gate), up)


@gelu_mul.decomposes(lambda gate: {gelu: (gate,), mul: (gate,)})
def _gelu_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    mul.into(out, gelu(gate), up)


@gelu_erf_mul.decomposes(lambda gate: {gelu_erf: (gate,), mul: (gate,)})
def _gelu_erf_mul(out: Tensor, gate: Tensor, up: Tensor, /) -> None:
    mul.into(out, gelu_erf(gate), up)


@silu.decomposes(lambda x: {sigmoid: (x,), mul: (x,)})
def _silu(out: Tensor, x: Tensor, /) -> None:
    mul.into(out, x, sigmoid(x))


@quick_gelu.decomposes(lambda x: {affine: (x,), sigmoid: (x,), mul: (x,)})
def _quick_gelu(out: Tensor, x: Tensor, /) -> None:
    mul.into(out, x, sigmoid(affine(x, 1.702, 0.0)))


@rsqrt.decomposes(lambda x: {sqrt: (x,), recip: (x,)})
def _rsqrt(out: Tensor, x: Tensor, /) -> None:
    recip.into(out, sqrt(x))


@sqr.decomposes(lambda x: {mul: (x,)})
def _sqr(out: Tensor, x: Tensor, /) -> None:
    mul.into(out, x, x)
