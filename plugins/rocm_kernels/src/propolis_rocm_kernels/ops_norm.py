"""Normalisation layers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels._elementwise import pointer
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._layouts import strided_of
from propolis_rocm_kernels._rows import GROUPS
from propolis_rocm_kernels._rows import plan
from propolis_rocm_kernels._scalars import letter


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_kernels._kernels import Kernel

MODULE: Final = Module("norm")


def _kernels(name: str, before: str, after: str) -> dict[tuple[object, str], Kernel]:
    return {
        (dtype, group): MODULE.kernel(
            f"{name}_{dtype.name}_{group}", before + letter(dtype) + after
        )
        for dtype in dtypes.FLOATS
        for group in GROUPS
    }


_RMS_NORM: Final = _kernels("rms_norm", "PPPqqqq", "1")
_ADD_RMS_NORM: Final = _kernels("add_rms_norm", "PPPPPqqqqq", "2")
_LAYER_NORM: Final = _kernels("layer_norm", "PPPPqqqqq", "1")


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, /, eps: float = 1e-5) -> None:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension."""
    layout, dtype, device = x.layout, x.dtype, out.device
    if layout.numel == 0:
        return
    width, strides = layout.shape[-1], layout.strides
    outer = layout.shape[:-1]
    packed, rows, _, starts = strided_of(outer, (outer, strides[:-1]))
    group, blocks, threads = plan(device, rows, width, dtype.block_bytes)
    kernel, size = _RMS_NORM[dtype, group], dtype.block_bytes
    to, start, w = pointer(out), pointer(x), pointer(weight)
    steps = strides[-1], weight.layout.strides[0]
    for (offset,) in starts:
        at = start + offset * size
        kernel(device, blocks, to, at, w, rows, width, *steps, eps, packed, threads=threads)
        to += rows * width * size


def add_rms_norm(
    total: Tensor,
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    /,
    eps: float = 1e-5,
) -> None:
    """``total = x + residual``, rounded, and its norm."""
    layout, other, dtype, device = x.layout, residual.layout, x.dtype, out.device
    if layout.numel == 0:
        return
    width = layout.shape[-1]
    outer = layout.shape[:-1]
    packed, rows, _, starts = strided_of(
        outer, (outer, layout.strides[:-1]), (outer, other.strides[:-1])
    )
    group, blocks, threads = plan(device, rows, width, dtype.block_bytes)
    kernel, size = _ADD_RMS_NORM[dtype, group], dtype.block_bytes
    steps = layout.strides[-1], other.strides[-1], weight.layout.strides[0]
    done = 0
    for first, second in starts:
        kernel(
            device,
            blocks,
            pointer(total) + done,
            pointer(out) + done,
            pointer(x) + first * size,
            pointer(residual) + second * size,
            pointer(weight),
            rows,
            width,
            *steps,
            eps,
            packed,
            threads=threads,
        )
        done += rows * width * size


def layer_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    /,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    layout, dtype, device = x.layout, x.dtype, out.device
    if layout.numel == 0:
        return
    width, strides = layout.shape[-1], layout.strides
    outer = layout.shape[:-1]
    packed, rows, _, starts = strided_of(outer, (outer, strides[:-1]))
    group, blocks, threads = plan(device, rows, width, dtype.block_bytes)
    kernel, size = _LAYER_NORM[dtype, group], dtype.block_bytes
    added = (0, 1) if bias is None else (pointer(bias), bias.layout.strides[0])
    to, w = pointer(out), pointer(weight)
    steps = strides[-1], weight.layout.strides[0], added[1]
    for (offset,) in starts:
        at = pointer(x) + offset * size
        kernel(
            device,
            blocks,
            *(to, at, w, added[0]),
            *(rows, width),
            *steps,
            eps,
            packed,
            threads=threads,
        )
        to += rows * width * size


OPS: Final = [
    implementation("rms_norm", rms_norm, dtypes.FLOATS, in_place=False),
    implementation("add_rms_norm", add_rms_norm, dtypes.FLOATS, in_place=False),
    implementation("layer_norm", layer_norm, dtypes.FLOATS, in_place=False),
]
