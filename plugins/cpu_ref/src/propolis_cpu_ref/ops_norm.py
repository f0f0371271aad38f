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
from propolis_cpu_ref._threads import grain
from propolis_cpu_ref._threads import over_rows


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis import Tensor

# Elements that a pass works on at a time, so that several passes over them find them
# in cache.
CACHED = 1 << 16

# Squares that BLAS adds up in one go: its few running sums stay exact enough.
SUMMED = 4096


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
    width = x.shape[-1]
    count = x.numel // max(width, 1)
    rows, values = y.reshape(count, width), unit_stride(wide(x)).reshape(count, width)
    scale, shift = wide(weight), None if bias is None else wide(bias)

    def work(part: slice) -> None:
        for some in _pieces(part, width):
            piece = rows[some]
            _standardize(piece, values[some], eps)
            piece *= scale
            if shift is not None:
                piece += shift

    if y.size:
        over_rows(out.device.threads, count, grain(width), work)
    store(out, y)


@ieee
def group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """Each group of channels normalised over its channels and positions."""
    _group_norm(out, x, weight, bias, groups, eps, silu=False)


@ieee
def group_norm_silu(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """``silu`` of the group norm."""
    _group_norm(out, x, weight, bias, groups, eps, silu=True)


def _rms_norm(y: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float) -> None:
    # An element repeated by stride 0 has no BLAS, and numpy's own loop adds one by one.
    values = unit_stride(x)
    mean = np.vecdot(values, values) / values.dtype.type(max(x.shape[-1], 1))
    scale = 1 / np.sqrt(mean + values.dtype.type(eps))
    np.multiply(values, scale[..., None], out=y)
    y *= weight


def _standardize(y: np.ndarray, x: np.ndarray, eps: float) -> None:
    """Each row of mean 0 and variance 1, in two passes."""
    np.subtract(x, x.mean(axis=-1, keepdims=True), out=y)
    count, width = y.shape
    whole = width // SUMMED * SUMMED
    parts = y[:, :whole].reshape(count, -1, SUMMED)
    total = np.vecdot(parts, parts).sum(axis=-1) + np.vecdot(y[:, whole:], y[:, whole:])
    variance = total / y.dtype.type(width)
    y *= (1 / np.sqrt(variance + y.dtype.type(eps)))[:, None]


def _pieces(part: slice, width: int) -> Iterator[slice]:
    """Some rows at a time, so that the passes over them stay in cache."""
    step = max(1, CACHED // width)
    for start in range(part.start, part.stop, step):
        yield slice(start, min(start + step, part.stop))


def _group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    *,
    silu: bool,
) -> None:
    y = scratch(out)
    if not y.size:
        return
    count, channels = x.shape[0] * groups, x.shape[1] // groups
    width = x.numel // count
    rows = y.reshape(count, width)
    values = np.ascontiguousarray(wide(x)).reshape(count, width)
    # (rows, channels, 1), as each row has the channels of its group.
    scale, shift = (
        None if t is None else np.tile(wide(t).reshape(groups, channels, 1), (x.shape[0], 1, 1))
        for t in (weight, bias)
    )

    def work(part: slice) -> None:
        for some in _pieces(part, width):
            _standardize(rows[some], values[some], eps)
            piece = rows[some].reshape(-1, channels, width // channels)
            if scale is not None:
                piece *= scale[some]
            if shift is not None:
                piece += shift[some]
            if silu:
                share = np.negative(piece)
                np.exp(share, out=share)
                share += 1
                piece /= share

    over_rows(out.device.threads, count, grain(width), work)
    store(out, y)


OPS = [
    OpImpl(op="rms_norm", fn=rms_norm, dtypes=FLOATS),
    OpImpl(op="add_rms_norm", fn=add_rms_norm, dtypes=FLOATS),
    OpImpl(op="layer_norm", fn=layer_norm, dtypes=FLOATS),
    OpImpl(op="group_norm", fn=group_norm, dtypes=FLOATS),
    OpImpl(op="group_norm_silu", fn=group_norm_silu, dtypes=FLOATS),
]
