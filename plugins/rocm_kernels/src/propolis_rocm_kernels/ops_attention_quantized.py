"""Attention of keys and values in blocks or 16 bits: decoding, and many queries at once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels import _attention
from propolis_rocm_kernels._attention import ARGUMENTS
from propolis_rocm_kernels._attention import GROUP
from propolis_rocm_kernels._attention import Plan
from propolis_rocm_kernels._attention import columns_of
from propolis_rocm_kernels._attention import decoding
from propolis_rocm_kernels._attention import few_queries
from propolis_rocm_kernels._attention import functions
from propolis_rocm_kernels._attention import lanes_of
from propolis_rocm_kernels._attention import rows_in_packs
from propolis_rocm_kernels._attention import supports
from propolis_rocm_kernels._attention import tiles_of
from propolis_rocm_kernels._attention import too_wide
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._scratch import BYTES


if TYPE_CHECKING:
    from propolis import Tensor

MODULE: Final = Module("attention_quantized")

for _name in ("SIDE", "DECODE_THREADS", "GROUP", "MOST_PARTS", "AHEAD"):
    MODULE.constant(_name, getattr(_attention, _name))

_QUERIES: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_BLOCKS: Final = (dtypes.q8_0,)
_HALVES: Final = (dtypes.f16, dtypes.bf16)
_PAIRS: Final = (
    *((d, block) for d in _QUERIES for block in _BLOCKS),
    *((dtypes.f32, half) for half in _HALVES),
)
_DECODE: Final = {
    (d, kept, n, heads): MODULE.kernel(f"{name}{n}_{d.name}_{kept.name}", ARGUMENTS)
    for d, kept in _PAIRS
    for n in (8, 16, 32)
    for heads, name in ((1, "decode"), (GROUP, "grouped"))
}
_PREFILL: Final = {
    (d, kept, n): MODULE.kernel(f"prefill{n}_{d.name}_{kept.name}", ARGUMENTS)
    for d, kept in _PAIRS
    for n in (1, 2, 4)
}


def _choose(
    q: Tensor, k: Tensor, v: Tensor, batch: int, keys: int, *, ragged: bool, plain: bool
) -> Plan:
    _, total, heads, dim = q.shape
    value_dim = v.shape[3]
    if few_queries(total, batch, ragged=ragged) or not rows_in_packs(q):
        each = GROUP if heads > k.shape[2] and plain else 1
        kernel = _DECODE[q.dtype, k.dtype, lanes_of(dim, value_dim), each]
        return decoding(kernel, q, k, v, keys, each)
    tiles = tiles_of(total, batch, ragged=ragged)
    return Plan(_PREFILL[q.dtype, k.dtype, columns_of(value_dim)], tiles * heads, BLOCK)


def _supports(q: Tensor, k: Tensor, v: Tensor, /, *rest: Any, **others: Any) -> str | None:
    """None, or why not: heads that no block holds whole, or too much."""
    if not k.dtype.is_block and not all(map(rows_in_packs, (k, v))):
        return "rows begin where no 16 bytes can be loaded at once"
    return too_wide(q, v) or supports(q, k, v, *rest, **others)


OPS: Final = [
    implementation(
        name,
        fn,
        {"q": queries, "k": kept},
        in_place=False,
        supports=_supports,
        variant=variant,
        workspace=BYTES,
    )
    for queries, kept, variant in ((_QUERIES, _BLOCKS, ""), ((dtypes.f32,), _HALVES, "halves"))
    for name, fn in zip(("qattention", "qattention_lse"), functions(_choose), strict=True)
]
