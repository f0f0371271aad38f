"""Truths of what goes along dimensions: softmax, norms, reductions, order."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

Array = np.ndarray[Any, Any]
Dims = int | tuple[int, ...] | None


def softmax(x: Array, dim: int = -1) -> Array:
    """Shares of the exponentials."""
    if x.shape[dim] == 0:
        return x
    e = np.exp(x - x.max(dim, keepdims=True))
    return np.asarray(e / e.sum(dim, keepdims=True))


def _log_softmax(x: Array, dim: int = -1) -> Array:
    if x.shape[dim] == 0:
        return x
    below = x - x.max(dim, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(dim, keepdims=True)))


def rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    """Each row over its root mean square."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def _layer_norm(x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight
    return np.asarray(y if bias is None else y + bias)


def _group_norm(x: Array, weight: Array, bias: Array, groups: int, eps: float = 1e-5) -> Array:
    if not x.size:
        return x
    parts = x.reshape(x.shape[0], groups, -1)
    d = parts - parts.mean(-1, keepdims=True)
    y = (d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    return np.asarray(y * weight.reshape(channels) + bias.reshape(channels))


def _group_norm_silu(*args: Any, **kwargs: Any) -> Array:
    y = _group_norm(*args, **kwargs)
    return np.asarray(y / (1 + np.exp(-y)))


def _sum(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    kind = x.dtype if x.dtype.kind in "iu" else None  # integers wrap in their own dtype
    return np.asarray(np.sum(x, dims, kind, keepdims=keepdim))


def _mean(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.mean(x, dims, keepdims=keepdim))


def _var(x: Array, dims: Dims = None, *, keepdim: bool = False, correction: int = 0) -> Array:
    count = np.sum(np.ones_like(x), dims, keepdims=keepdim) - correction
    far = x - x.mean(dims, keepdims=True)
    total = (far * far).sum(dims, keepdims=keepdim)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)


def _min(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.min(x, dims, keepdims=keepdim))


def _max(x: Array, dims: Dims = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.max(x, dims, keepdims=keepdim))


def _cumsum(x: Array, dim: int = -1) -> Array:
    return np.cumsum(x, dim, x.dtype)


def order(x: Array, dim: int = -1, *, descending: bool = False) -> Array:
    """What sorts each row: Python's own stable sort, NaN above every number."""
    rows = np.moveaxis(x, dim, -1)
    places = np.empty(rows.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        keys = [(n != n, 0 if n != n else n) for n in rows[at].tolist()]  # noqa: PLR0124  (NaN)
        places[at] = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
    return np.moveaxis(places, -1, dim)


def _sort(x: Array, dim: int = -1, *, descending: bool = False) -> Array:
    return np.take_along_axis(x, order(x, dim, descending=descending), dim)


def _topk(x: Array, k: int, dim: int = -1, *, largest: bool = True) -> tuple[Array, Array]:
    # NaN is the largest of all: smallest first, it comes last.
    places = np.take(order(x, dim, descending=largest), np.arange(k), dim)
    return np.take_along_axis(x, places, dim), places


def _moe_gate(logits: Array, k: int, *, renormalize: bool = True) -> tuple[Array, Array]:
    experts = np.take(order(logits, descending=True), np.arange(k), -1)
    shares = np.take_along_axis(softmax(logits), experts, -1)
    if renormalize:
        shares = shares / shares.sum(-1, keepdims=True)
    return shares, experts


FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    "softmax": softmax,
    "log_softmax": _log_softmax,
    "rms_norm": rms_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "group_norm_silu": _group_norm_silu,
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "min": _min,
    "max": _max,
    "argmax": lambda x, dim=-1: np.argmax(x, dim),
    "argmin": lambda x, dim=-1: np.argmin(x, dim),
    "cumsum": _cumsum,
    "sort": _sort,
    "argsort": order,
    "topk": _topk,
    "moe_gate": _moe_gate,
}
