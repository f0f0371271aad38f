"""Products of the norm of a sum: one kernel after the other, in one call of an op."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import Priority
from propolis import dtypes
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import native
from propolis_cpu_native.ops_binary import NUMBERS
from propolis_cpu_native.ops_norm import add_rms_norm
from propolis_cpu_native.ops_quantized import FORMATS
from propolis_cpu_native.ops_quantized import NO_MATRIX
from propolis_cpu_native.ops_quantized import TILE
from propolis_cpu_native.ops_quantized import multiply
from propolis_cpu_native.ops_quantized import prepare
from propolis_cpu_native.ops_quantized import supports_matrix
from propolis_cpu_native.ops_rope import writes_rows


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import OpImpl
    from propolis import Tensor


def _functions(way: Way) -> tuple[Callable[..., None], ...]:
    """Those whose product is computed in such a way."""

    def normed(
        total: Tensor, out: Tensor, given: tuple[Tensor, ...], eps: float, *, gated: bool = False
    ) -> None:
        x, residual, weight, w = given
        inner = x.device.empty(x.shape, x.dtype)
        add_rms_norm(total, inner, x, residual, weight, eps)
        multiply(out, inner, w, way, gated=gated)

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
        if not gated or (way is Way.MATRIX and width % TILE == 0):
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
    for tensor in (x, residual, weight, w, slots, positions):
        if not tensor.layout.is_contiguous:
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
    *_: Any,
    gated: bool = False,
    **__: Any,
) -> int:
    del residual, weight
    return _workspace(x, w.shape[0] if gated else 0)


def _for_kept(cache: Tensor, x: Tensor, *others: Any, **_: Any) -> int:
    del cache
    w = others[2]
    return _workspace(x, w.shape[0])


def _many(
    x: Tensor, residual: Tensor, weight: Tensor, w: Tensor, /, *_: Any, **__: Any
) -> str | None:
    """None, or why tiles of matrices do not pay."""
    del residual, weight
    return supports_matrix(x, w)


def _keeps_many(cache: Tensor, *others: Any, **options: Any) -> str | None:
    """None, or why not: both."""
    return _many(*others) or _keeps(cache, *others, **options)


def _implementations(way: Way, notes: str, **how: Any) -> list[OpImpl]:
    normed, kept = _functions(way)
    shared = {"dtypes": {"x": {dtypes.f32}, "w": FORMATS}, "prepare": prepare, "notes": notes}
    many = way is Way.MATRIX
    return [
        implementation(
            normed.__name__,
            normed,
            supports=_many if many else None,
            workspace=_for_normed,
            **shared,
            **how,
        ),
        implementation(
            kept.__name__,
            kept,
            supports=_keeps_many if many else _keeps,
            strided=True,
            workspace=_for_kept,
            **shared,
            **how,
        ),
    ]


OPS: Final = [
    *_implementations(
        Way.MATRIX,
        "by AMX, activations and weights rounded to bf16; weights repacked",
        variant="matrix",
        priority=Priority.GENERIC + 20,
        exact=False,
        unusable=NO_MATRIX,
    ),
    *_implementations(
        Way.TILES,
        "activations rounded to 8 bits, to 16 where some stand out; weights repacked",
        variant="rounded",
        priority=Priority.GENERIC + 10,
        exact=False,
    ),
    *_implementations(Way.EXACT, "activations as they are; weights repacked"),
]
