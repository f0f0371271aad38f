"""Normalisation layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import OpImpl
from propolis.dtypes import FLOATS
from propolis_cpu_ref._compute import ieee
from propolis_cpu_ref._compute import scratch
from propolis_cpu_ref._compute import store
from propolis_cpu_ref._compute import unit_stride
from propolis_cpu_ref._compute import wide


if TYPE_CHECKING:
    from propolis import Tensor


@ieee
def rms_norm(out: Tensor, x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> None:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension."""
    y = scratch(out)
    _rms_norm(y, wide(x), wide(weight), eps)
    store(out, y)


@ieee
def add_rms_norm(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    /,
    eps: float = 1e-5,
) -> None:
    """The sum, rounded, and its rms norm."""
    np.add(x.array, residual.array, out=total.array)
    y = scratch(out)
    _rms_norm(y, wide(total), wide(weight), eps)
    store(out, y)


@ieee
def layer_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    /,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    y = scratch(out)
    if y.size:
        _standardize(y, wide(x), -1, eps)
    y *= wide(weight)
    if bias is not None:
        y += wide(bias)
    store(out, y)


@ieee
def group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """Each group of channels normalised over its channels and positions."""
    store(out, _group_norm(out, x, weight, bias, groups, eps))


@ieee
def group_norm_silu(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """``silu`` of the group norm."""
    y = _group_norm(out, x, weight, bias, groups, eps)
    y /= 1 + np.exp(-y)
    store(out, y)


def _rms_norm(y: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float) -> None:
    # An element repeated by stride 0 has no BLAS, and numpy's own loop adds one by one.
    values = unit_stride(x)
    mean = np.vecdot(values, values) / values.dtype.type(max(x.shape[-1], 1))
    scale = 1 / np.sqrt(mean + values.dtype.type(eps))
    np.multiply(values, scale[..., None], out=y)
    y *= weight


def _standardize(y: np.ndarray, x: np.ndarray, axis: int, eps: float) -> None:
    """Mean 0 and variance 1 along one axis, in two passes."""
    np.subtract(x, x.mean(axis=axis, keepdims=True), out=y)
    variance = np.square(y).mean(axis=axis, keepdims=True)
    y /= np.sqrt(variance + y.dtype.type(eps))


def _group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
) -> np.ndarray:
    y = scratch(out)
    if y.size:
        rows = (x.shape[0] * groups, x.numel // (x.shape[0] * groups))
        _standardize(y.reshape(rows), np.ascontiguousarray(wide(x)).reshape(rows), -1, eps)
        channel = (1, x.shape[1], *(1 for _ in x.shape[2:]))
        y *= wide(weight).reshape(channel)
        y += wide(bias).reshape(channel)
    return y


OPS = [
    OpImpl(op="rms_norm", fn=rms_norm, dtypes=FLOATS),
    OpImpl(op="add_rms_norm", fn=add_rms_norm, dtypes=FLOATS),
    OpImpl(op="layer_norm", fn=layer_norm, dtypes=FLOATS),
    OpImpl(op="group_norm", fn=group_norm, dtypes=FLOATS),
    OpImpl(op="group_norm_silu", fn=group_norm_silu, dtypes=FLOATS),
]
