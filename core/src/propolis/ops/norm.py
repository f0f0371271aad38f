"""
Normalisation layers.

All compute in f32 or wider and round once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.dtypes import FLOATS
from propolis.errors import OpError
from propolis.ops.binary import add
from propolis.ops.unary import silu
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import Meta
from propolis.opspec.spec import op
from propolis.opspec.spec import pair_op
from propolis.opspec.tolerance import RELATIVE


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.opspec.tolerance import Array
    from propolis.tensor import Tensor


_ROWS = {
    "x": "(..., width), a float dtype.",
    "weight": "(width,), same dtype.",
    "bias": "(width,), same dtype, or None.",
    "eps": "added to the mean square.",
}
_GROUPS = {
    "x": "(batch, channels, ...), a float dtype.",
    "weight": "(channels,), same dtype, or None: multiplies each channel afterwards.",
    "bias": "(channels,), same dtype, or None: is added to each channel then.",
    "groups": "divides the channels.",
    "eps": "added to the variance.",
}


@op({"x": FLOATS}, tolerance=RELATIVE, shared=_ROWS)
def rms_norm(x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> Meta:
    """
    ``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension (Zhang, Sennrich 2019).

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
        OpError: eps is negative or not finite.
    """
    _expect_eps("rms_norm", eps)
    same_dtype("rms_norm", x=x, weight=weight)
    fits = len(x.shape) >= 1 and weight.shape == x.shape[-1:]
    expect("rms_norm", fits, "x is (..., width), weight is (width,)", x=x, weight=weight)
    return x.shape, x.dtype


@pair_op({"x": FLOATS}, tolerance=RELATIVE, shared=_ROWS)
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    /,
    eps: float = 1e-5,
) -> tuple[Meta, Meta]:
    """
    ``h = x + residual`` and ``rms_norm(h, weight, eps)``.

    ``h`` is rounded to the dtype before it is normalised.

    Args:
        residual: same shape and dtype.

    Returns:
        ``h`` and its norm, each of the shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
        OpError: eps is negative or not finite.
    """
    _expect_eps("add_rms_norm", eps)
    same_dtype("add_rms_norm", x=x, residual=residual, weight=weight)
    fits = len(x.shape) >= 1 and x.shape == residual.shape and weight.shape == x.shape[-1:]
    rule = "x and residual are (..., width), weight is (width,)"
    expect("add_rms_norm", fits, rule, x=x, residual=residual, weight=weight)
    return (x.shape, x.dtype), (x.shape, x.dtype)


def _layer_terms(
    f: Callable[..., Any],
    x: Array,
    weight: Array,
    /,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """What subtracting the mean may lose: the largest element over the deviation."""
    if not x.size:
        return x
    largest = np.abs(x).max(-1, keepdims=True)
    y = largest / np.sqrt(x.var(-1, keepdims=True) + eps) * np.abs(weight)
    return np.asarray(y if bias is None else y + np.abs(bias))


@op({"x": FLOATS}, tolerance=RELATIVE, magnitude=_layer_terms, shared=_ROWS)
def layer_norm(
    x: Tensor,
    weight: Tensor,
    /,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Meta:
    """
    ``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension (Ba et al. 2016).

    Args:
        eps: added to the variance.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
        OpError: eps is negative or not finite.
    """
    _expect_eps("layer_norm", eps)
    same_dtype("layer_norm", x=x, weight=weight)
    fits = len(x.shape) >= 1 and weight.shape == x.shape[-1:]
    expect("layer_norm", fits, "x is (..., width), weight is (width,)", x=x, weight=weight)
    if bias is not None:
        same_dtype("layer_norm", x=x, bias=bias)
        expect("layer_norm", bias.shape == weight.shape, "bias is (width,)", x=x, bias=bias)
    return x.shape, x.dtype


def _group_terms(
    f: Callable[..., Any],
    x: Array,
    weight: Array | None,
    bias: Array | None,
    groups: int,
    eps: float = 1e-5,
) -> Array:
    """The same, of each group; SiLU's slope is nowhere far above 1."""
    if not x.size:
        return x
    rows = x.reshape(x.shape[0], groups, -1)
    largest = np.abs(rows).max(-1, keepdims=True)
    y = largest / np.sqrt(rows.var(-1, keepdims=True) + eps)
    y = np.broadcast_to(y, rows.shape).reshape(x.shape)
    across = (-1, *(1,) * (x.ndim - 2))
    if weight is not None:
        y = y * np.abs(weight).reshape(across)
    return np.asarray(y if bias is None else y + np.abs(bias).reshape(across))


@op({"x": FLOATS}, tolerance=RELATIVE, magnitude=_group_terms, shared=_GROUPS)
def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> Meta:
    """
    Normalise each group of channels over its channels and all positions (Wu, He 2018).

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
        OpError: groups does not divide the channels, or eps is negative or not finite.
    """
    return _group_norm("group_norm", x, weight, bias, groups, eps)


@op({"x": FLOATS}, tolerance=RELATIVE, magnitude=_group_terms, shared=_GROUPS)
def group_norm_silu(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> Meta:
    """
    ``silu(group_norm(x, weight, bias, groups, eps))``, rounded once.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError: the dtypes differ or are not floats.
        ShapeError: the shapes do not fit together.
        OpError: groups does not divide the channels, or eps is negative or not finite.
    """
    return _group_norm("group_norm_silu", x, weight, bias, groups, eps)


def _group_norm(
    name: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Meta:
    _expect_eps(name, eps)
    affine = {n: t for n, t in (("weight", weight), ("bias", bias)) if t is not None}
    same_dtype(name, x=x, **affine)
    fits = len(x.shape) >= 2 and all(t.shape == x.shape[1:2] for t in affine.values())
    rule = "x is (batch, channels, ...), weight and bias are (channels,)"
    expect(name, fits, rule, x=x, **affine)
    if groups < 1 or x.shape[1] % groups:
        msg = f"{name}: groups {groups} must divide the {x.shape[1]} channels"
        raise OpError(msg)
    return x.shape, x.dtype


def _expect_eps(name: str, eps: float) -> None:
    if not 0 <= eps < np.inf:  # of a root's sum: it would be NaN, or everything zero
        msg = f"{name}: eps is {eps}; allowed: a finite number, at least 0"
        raise OpError(msg)


@add_rms_norm.decomposes(lambda x: {add: (x,), rms_norm: (x,)})
def _add_rms_norm(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    /,
    eps: float = 1e-5,
) -> None:
    rms_norm.into(out, add.into(total, x, residual), weight, eps)


@group_norm_silu.decomposes(lambda x: {group_norm: (x,), silu: (x,)})
def _group_norm_silu(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    silu.into(out, group_norm(x, weight, bias, groups, eps))
