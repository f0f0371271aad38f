"""Mixtures of experts: products of tokens with the weights of the experts that each chose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Prepared
from propolis import Tensor
from propolis import dtypes
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import aligned
from propolis_cpu_native._native import lasting
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_linear import FEW
from propolis_cpu_native.ops_quantized import TILE
from propolis_cpu_native.ops_quantized import products


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import DType


def _tile_bytes(dtype: DType, rows: int, width: int) -> int:
    """Of an expert's weights, repacked."""
    return -(-rows // TILE) * (width // dtype.block_size) * int(native().tile_bytes(dtype.name))


def prepare(w: Tensor) -> Prepared:
    """Repack the weights of every expert: the same bits, sixteen rows together."""
    tiles = _repacked(w, lasting)
    device, shape, dtype = w.device, w.shape, w.dtype
    count, *sizes = shape

    def restore() -> Tensor:
        raw = np.empty((count, dtype.nbytes(math.prod(sizes))), np.uint8)
        each = _tile_bytes(dtype, *sizes)
        for one, packed in zip(raw, tiles.reshape(count, each), strict=True):
            native().unpack(one, packed, dtype.name, *sizes, device.threads)
        return Tensor.from_blocks(raw.reshape(-1), dtype, shape, device)

    return Prepared(tiles, tiles.nbytes, "repacked, as small as in the file", restore)


def _repacked(w: Tensor, memory: Callable[[int], np.ndarray]) -> np.ndarray:
    count, rows, width = w.shape
    each = _tile_bytes(w.dtype, rows, width)
    tiles = memory(count * each)
    if tiles.size:
        raw = np.ascontiguousarray(w.array).reshape(count, -1)
        for to, one in zip(tiles.reshape(count, each), raw, strict=True):
            native().repack(to, one, w.dtype.name, rows, width, w.device.threads)
    return tiles


def _sizes(out: Tensor, x: Tensor, w: Tensor, experts: Tensor) -> tuple[int | bool, ...]:
    tokens, each = experts.shape
    shared = x.shape[1] == 1 != each
    return KINDS[x.dtype], tokens, each, shared, *w.shape, out.device.threads


def _multiply(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, way: Way) -> None:
    tiles = w.prepared.get(prepare)
    if tiles is None:
        tiles = _repacked(w, aligned)
    sizes = _sizes(out, x, w, experts)
    native().moe_qmatmul(out.array, x.array, tiles, w.dtype.name, experts.array, *sizes, way)


def moe_qmatmul(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """Each token times its experts' weights, with sums in f32."""
    _multiply(out, x, w, experts, Way.EXACT)


def moe_qmatmul_rounded(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """The same with activations rounded, as ``qmatmul`` has it."""
    _multiply(out, x, w, experts, Way.TILES)


def moe_linear(out: Tensor, x: Tensor, w: Tensor, experts: Tensor, /) -> None:
    """Each token times its experts' weights, which are read as they lie, in f32."""
    sizes = _sizes(out, x, w, experts)
    native().moe_linear(out.array, x.array, w.array, experts.array, *sizes, Way.EXACT)


def _few(x: Tensor, w: Tensor, experts: Tensor, /) -> str | None:
    """None, or why not."""
    if x.dtype is dtypes.f32 and experts.numel >= FEW * max(w.shape[0], 1):
        return "of many rows of f32 numpy's BLAS, which the reference calls, is faster"
    return None


OPS: Final = [
    *products("moe_qmatmul", moe_qmatmul_rounded, moe_qmatmul, prepare),
    implementation("moe_linear", moe_linear, supports=_few),
]
