"""Norms of rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor


def _rows(x: Tensor) -> tuple[int, int]:
    return math.prod(x.shape[:-1]), x.shape[-1]


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> None:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension."""
    arrays = out.array, None, x.array, None, weight.array
    native().rms_norm(*arrays, KINDS[x.dtype], *_rows(x), eps, out.device.threads)


def add_rms_norm(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    /,
    eps: float = 1e-5,
) -> None:
    """``h = x + residual``, and its norm."""
    arrays = out.array, total.array, x.array, residual.array, weight.array
    native().rms_norm(*arrays, KINDS[x.dtype], *_rows(x), eps, out.device.threads)


def layer_norm(
    out: Tensor, x: Tensor, weight: Tensor, /, bias: Tensor | None = None, eps: float = 1e-5
) -> None:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    arrays = out.array, x.array, weight.array, None if bias is None else bias.array
    native().layer_norm(*arrays, KINDS[x.dtype], *_rows(x), eps, out.device.threads)


OPS: Final = [
    implementation("rms_norm", rms_norm),
    implementation("add_rms_norm", add_rms_norm),
    implementation("layer_norm", layer_norm),
]
