"""Products of the norm of a sum: one kernel after the other, in one call of an op."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import Priority
from propolis import dtypes
from propolis_cpu_native._implementation import MANY
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_binary import NUMBERS
from propolis_cpu_native.ops_norm import add_rms_norm
from propolis_cpu_native.ops_quantized import FORMATS
from propolis_cpu_native.ops_quantized import TILE
from propolis_cpu_native.ops_quantized import multiply
from propolis_cpu_native.ops_quantized import prepare
from propolis_cpu_native.ops_rope import writes_rows


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import OpImpl
    from propolis import Tensor

_MATRIX: Final = matrix_instructions() == "AMX"


def _exact(rows: int) -> Way:
    del rows
    return Way.EXACT


def _rounded(rows: int) -> Way:
    """As separate calls are: :mod:`propolis_cpu_native.ops_quantized`."""
    return Way.MATRIX if _MATRIX and rows >= MANY else Way.TILES


def _functions(way: Callable[[int], Way]) -> tuple[Callable[..., None], ...]:
    """Those whose product is computed in such a way."""

    def normed(
        total: Tensor, out: Tensor, given: tuple[Tensor, ...], eps: float, *, gated: bool = False
    ) -> None:
        x, residual, weight, w = given
        inner = x.device.empty(x.shape, x.dtype)
        add_rms_norm(total, inner, x, residual, weight, eps)
        multiply(out, inner, w, way(math.prod(x.shape[:-1])), gated=gated)

    def add_rms_norm_qmatmul(
        total: Tensor,
        out: Tensor,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        w: Tensor,
        /,
        eps: float = 1e-5,
        *,
        gated: bool = False,
    ) -> None:
        """``h = x + residual``, and ``qmatmul`` of its norm or the halves of that, gated."""
        given = x, residual, weight, w
        width, rows = out.shape[-1], math.prod(out.shape[:-1])
        if not gated or (way(rows) is Way.MATRIX and width % TILE == 0):
            normed(total, out, given, eps, gated=gated)
            return
        both = x.device.empty((rows, 2 * width), x.dtype)
        normed(total, both, given, eps)
        gate, up = both.array[:, :width], both.array[:, width:]
        steps = gate, 2 * width, up, 2 * width
        kind, threads = KINDS[x.dtype], x.device.threads
        native().pairwise(NUMBERS["silu_mul"], out.array, *steps, kind, rows, width, threads)

    def add_rms_norm_qmatmul_rope_kv_append(
        total: Tensor,
        out: Tensor,
        cache: Tensor,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        w: Tensor,
        slots: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        /,
        eps: float = 1e-5,
        *,
        heads: int,
        interleaved: bool = False,
    ) -> None:
        """The same, rotated, and keys and values kept."""
        del heads  # as many as the output has
        batch, tokens, _ = x.shape
        threads, first = x.device.threads, out.shape[2]
        every = x.device.empty((batch, tokens, w.shape[0]), x.dtype)
        normed(total, every, (x, residual, weight, w), eps)
        each = every.array.reshape(batch, tokens, first + cache.shape[2], cache.shape[3])
        given, kept = KINDS[x.dtype], KINDS[cache.dtype]
        tables = cos.array, sin.array, interleaved
        new = each[:, :, first:], slots.array, positions.array
        native().rope_kv_append(cache.array, *new, *tables, given, kept, threads)
        queries = each[:, :, :first], positions.array
        native().rope(out.array, *queries, False, *tables, given, threads)

    return add_rms_norm_qmatmul, add_rms_norm_qmatmul_rope_kv_append


def _keeps(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> str | None:
    """None, or why not: only the cache and the tables may be strided, between rows."""
    del eps, heads, interleaved
    if not all(tensor.is_contiguous for tensor in (x, residual, weight, w, slots, positions)):
        return "an input is strided"
    return writes_rows(cache, x, slots, positions, cos, sin)


def _workspace(x: Tensor, products: int) -> int:
    """Bytes of the norm and of so many products a row: reused memory has up to an eighth more."""
    sizes = x.nbytes, math.prod(x.shape[:-1]) * products * x.dtype.block_bytes
    return sum(size + size // 8 + 8 for size in sizes)


def _for_normed(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    /,
    eps: float = 1e-5,
    *,
    gated: bool = False,
) -> int:
    del residual, weight, eps
    return _workspace(x, w.shape[0] if gated else 0)


def _for_kept(
    cache: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    w: Tensor,
    slots: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    /,
    eps: float = 1e-5,
    *,
    heads: int,
    interleaved: bool = False,
) -> int:
    del cache, residual, weight, slots, positions, cos, sin, eps, heads, interleaved
    return _workspace(x, w.shape[0])


def _implementations(
    functions: tuple[Callable[..., None], ...], notes: str, **how: Any
) -> list[OpImpl]:
    normed, kept = functions
    how = {"dtypes": {"x": {dtypes.f32}, "w": FORMATS}, "prepare": prepare, **how}
    return [
        implementation(normed.__name__, normed, notes=notes, workspace=_for_normed, **how),
        implementation(
            kept.__name__,
            kept,
            notes=notes,
            supports=_keeps,
            strided=True,
            workspace=_for_kept,
            **how,
        ),
    ]


OPS: Final = [
    *_implementations(
        _functions(_rounded),
        "activations rounded, as those of products are; weights repacked",
        variant="rounded",
        priority=Priority.GENERIC + 10,
        exact=False,
    ),
    *_implementations(_functions(_exact), "activations as they are; weights repacked"),
]
