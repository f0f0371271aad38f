"""Mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import dtypes
from propolis.dtypes import BLOCKS
from propolis.dtypes import FLOATS
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.ops.quantized import of_scaled
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import ROUNDED
from propolis.opspec.tolerance import of_absolutes


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


def _weights(
    f: Callable[..., Any], logits: Array, k: int, *, renormalize: bool = True
) -> tuple[Array, None]:
    """As for ``softmax``: exponentials lose what their arguments are rounded by."""
    below = logits.max(-1, keepdims=True) - logits.min(-1, keepdims=True)
    return f(logits, k, renormalize=renormalize)[0] * (1 + below / 32), None


@pair_op({"logits": FLOATS}, tolerance=RELATIVE, magnitude=_weights)
def moe_gate(
    logits: Tensor,
    /,
    k: int,
    *,
    renormalize: bool = True,
) -> tuple[Meta, Meta]:
    """
    The ``k`` likeliest experts of each token and their weights.

    Weights are ``softmax(logits)`` over all experts; renormalised, those of the
    chosen sum to 1.  Experts are chosen by their logits; of equal ones the first is taken
    first.

    Args:
        logits: (tokens, experts), a float dtype; computed in f32 or wider.
        k: experts a token, at most all.
        renormalize: whether the chosen experts' weights sum to 1.

    Returns:
        Weights (tokens, k) in the dtype of ``logits`` and experts (tokens, k) in i64,
        likeliest first.

    Raises:
        DTypeError: ``logits`` is not a float.
        ShapeError: ``logits`` is not of rank 2.
        OpError: there are fewer than ``k`` experts.
    """
    expect("moe_gate", len(logits.shape) == 2, "logits is (tokens, experts)", logits=logits)
    if not 1 <= k <= logits.shape[1]:
        msg = f"moe_gate: k {k} must be between 1 and {logits.shape[1]}, the number of experts"
        raise OpError(msg)
    shape = (logits.shape[0], k)
    return (shape, logits.dtype), (shape, dtypes.i64)


@op({"x": FLOATS}, tolerance=ROUNDED, magnitude=of_absolutes)
def moe_linear(x: Tensor, w: Tensor, experts: Tensor, /) -> Meta:
    """
    ``out[t, j] = x[t, j] @ w[experts[t, j]].T``: each token times its experts' weights.

    Args:
        x: (tokens, k or 1, in_features), a float dtype; sums are in f32 or wider.  With
            1, a token's experts share its input.
        w: (experts, out_features, in_features), same dtype.
        experts: (tokens, k), i64, each in [0, experts).

    Returns:
        (tokens, k, out_features), dtype of ``x``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: an expert is outside the weights (on the CPU: a GPU does not look).
    """
    same_dtype("moe_linear", x=x, w=w)
    return _moe_linear("moe_linear", x, w, experts)


@op({"x": FLOATS, "w": BLOCKS}, tolerance=ROUNDED, magnitude=of_absolutes, rounded=of_scaled)
def moe_qmatmul(x: Tensor, w: Tensor, experts: Tensor, /) -> Meta:
    """
    ``moe_linear`` with weights in a GGUF block format; infinities are as in ``qmatmul``.

    Args:
        x: (tokens, k or 1, in_features), a float dtype; sums are in f32 or wider.
        w: (experts, out_features, in_features), a block format along in_features.
        experts: (tokens, k), i64, each in [0, experts).

    Returns:
        (tokens, k, out_features), dtype of ``x``.

    Raises:
        DTypeError: the dtypes are not as above.
        ShapeError: the shapes do not fit together.
        OpError: an expert is outside the weights (on the CPU: a GPU does not look).
    """
    return _moe_linear("moe_qmatmul", x, w, experts)


def _moe_linear(name: str, x: Tensor, w: Tensor, experts: Tensor) -> Meta:
    fits = (
        len(x.shape) == len(w.shape) == 3
        and len(experts.shape) == 2
        and x.shape[0] == experts.shape[0]
        and x.shape[1] in (1, experts.shape[1])
        and x.shape[2] == w.shape[2]
    )
    rule = "x is (tokens, k or 1, in), w is (experts, out, in), experts is (tokens, k)"
    expect(name, fits, rule, x=x, w=w, experts=experts)
    if experts.dtype is not dtypes.i64:
        msg = f"{name}: experts is {experts.dtype}; supported: i64"
        raise DTypeError(msg)
    return (*experts.shape, w.shape[1]), x.dtype
