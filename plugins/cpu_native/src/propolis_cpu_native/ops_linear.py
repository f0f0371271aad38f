"""Linear layers."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from propolis import Prepared
from propolis import Tensor
from propolis import dtypes
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import matrix_implementation
from propolis_cpu_native._implementation import packed
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import lasting
from propolis_cpu_native._native import native


FEW: Final = 16
"""Fewer rows are no matrix yet: reading the weights, without packing them, is all the work.  As in
``linear.cpp``."""


def _packs(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    """None, or why not."""
    del bias
    rows = math.prod(x.shape[:-1])
    if rows < FEW and prepare not in w.prepared:
        return f"{rows} rows do not pay for packing weights"
    return None


def _mine(x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> str | None:
    """None, or why not."""
    del w, bias
    if x.dtype is dtypes.f32 and math.prod(x.shape[:-1]) >= FEW:
        return "of many rows of f32 numpy's BLAS, which the reference calls, is faster"
    return None


def prepare(w: Tensor) -> Prepared:
    """Pack a weight: the same elements, as tiles of 32 by 16."""
    shape, threads = w.shape, w.device.threads
    tiles = lasting(native().packed_bytes(*shape))
    native().pack_weight(tiles, np.ascontiguousarray(w.array), *shape, threads)

    def unpack(raw: np.ndarray) -> None:
        native().unpack_weight(raw, tiles, *shape, threads)

    return packed(w, tiles, unpack, "packed as tiles, as small as in the file")


def _multiply(
    out: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    way: Way,
    tiles: object = None,
) -> None:
    x, w, bias = inputs
    native().linear(
        out.array,
        x.array,
        None if tiles is not None else w.array,
        tiles,
        None if bias is None else bias.array,
        KINDS[x.dtype],
        math.prod(x.shape[:-1]),
        *w.shape,
        out.device.threads,
        way,
    )


def linear(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """``x @ w.T + bias``, in f32."""
    _multiply(out, (x, w, bias), Way.EXACT)


def linear_matrix(out: Tensor, x: Tensor, w: Tensor, /, bias: Tensor | None = None) -> None:
    """The same by tiles of matrices."""
    _multiply(out, (x, w, bias), Way.MATRIX, w.prepared.get(prepare))


OPS: Final = [
    matrix_implementation("linear", linear_matrix, supports=_packs, prepare=prepare),
    implementation("linear", linear, supports=_mine),
]
