"""Attention: decoding, a query at a time, and many queries at once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels import _attention
from propolis_rocm_kernels._attention import ARGUMENTS
from propolis_rocm_kernels._attention import DECODE_THREADS
from propolis_rocm_kernels._attention import GROUP
from propolis_rocm_kernels._attention import Plan
from propolis_rocm_kernels._attention import columns_of
from propolis_rocm_kernels._attention import decoding
from propolis_rocm_kernels._attention import few_queries
from propolis_rocm_kernels._attention import functions
from propolis_rocm_kernels._attention import lanes_of
from propolis_rocm_kernels._attention import rows_in_packs
from propolis_rocm_kernels._attention import slices_of
from propolis_rocm_kernels._attention import supports
from propolis_rocm_kernels._attention import tiles_of
from propolis_rocm_kernels._attention import too_wide
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._scratch import BYTES


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("attention")

for _name in ("MAX_DIM", "WIDEST", "SIDE", "DECODE_THREADS", "GROUP", "MOST_PARTS", "AHEAD"):
    MODULE.constant(_name, getattr(_attention, _name))

LESS_THREADS: Final = 64
"""Threads of a block that has one query, where many such blocks fill a device, or keys are few."""

FEW_KEYS: Final = 16
"""Keys of a sequence, up to which more threads would have nothing to look at."""

_TILED: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_ANY: Final = {d: MODULE.kernel(f"any_{d.name}", ARGUMENTS) for d in dtypes.FLOATS}
_WIDE: Final = {
    d: MODULE.kernel(f"wide_{d.name}", ARGUMENTS) for d in dtypes.FLOATS if d is not dtypes.f64
}
_DECODE: Final = {
    (d, n, heads): MODULE.kernel(f"{name}{n}_{d.name}", ARGUMENTS)
    for d in _TILED
    for n in (8, 16, 32)
    for heads, name in ((1, "decode"), (GROUP, "grouped"))
}
_PREFILL: Final = {
    (d, n): MODULE.kernel(f"prefill{n}_{d.name}", ARGUMENTS) for d in _TILED for n in (1, 2, 4)
}
_PREFILL_WIDE: Final = {d: MODULE.kernel(f"prefillwide_{d.name}", ARGUMENTS) for d in _TILED}


def _choose(
    q: Tensor, k: Tensor, v: Tensor, batch: int, keys: int, *, ragged: bool, plain: bool
) -> Plan:
    rows, total, heads, dim = q.shape
    value_dim, dtype = v.shape[3], q.dtype
    few = few_queries(total, batch, ragged=ragged)
    held = too_wide(q, v) is None
    slices = slices_of(value_dim)
    if dtype not in _TILED or not all(map(rows_in_packs, (q, k, v))) or (few and not held):
        threads = DECODE_THREADS if few and keys > FEW_KEYS else LESS_THREADS
        queries = rows * total * heads
        if held:
            return Plan(_ANY[dtype], queries, threads)
        return Plan(_WIDE[dtype], (queries, slices, 1), threads)
    if few:
        each = GROUP if heads > k.shape[2] and plain else 1
        return decoding(_DECODE[dtype, lanes_of(dim, value_dim), each], q, k, v, keys, each)
    tiles = tiles_of(total, batch, ragged=ragged)
    if slices > 1:
        return Plan(_PREFILL_WIDE[dtype], (tiles * heads, slices, 1), BLOCK)
    return Plan(_PREFILL[dtype, columns_of(value_dim)], tiles * heads, BLOCK)


OPS: Final = [
    implementation(name, fn, dtypes.FLOATS, in_place=False, supports=supports, workspace=BYTES)
    for name, fn in zip(("attention", "attention_lse"), functions(_choose), strict=True)
]
