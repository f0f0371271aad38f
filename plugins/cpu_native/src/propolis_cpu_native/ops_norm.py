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


def group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """Each group of channels less its mean, over its deviation."""
    _group_norm(out, x, weight, bias, groups, eps, with_silu=False)


def group_norm_silu(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    /,
    groups: int,
    eps: float = 1e-5,
) -> None:
    """SiLU of that."""
    _group_norm(out, x, weight, bias, groups, eps, with_silu=True)


def _group_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    eps: float,
    *,
    with_silu: bool,
) -> None:
    affine = (None if tensor is None else tensor.array for tensor in (weight, bias))
    sizes = *x.shape[:2], math.prod(x.shape[2:]), groups
    native().group_norm(
        out.array, x.array, *affine, KINDS[x.dtype], *sizes, eps, with_silu, out.device.threads
    )


OPS: Final = [
    implementation("rms_norm", rms_norm),
    implementation("add_rms_norm", add_rms_norm),
    implementation("layer_norm", layer_norm),
    implementation("group_norm", group_norm),
    implementation("group_norm_silu", group_norm_silu),
]
