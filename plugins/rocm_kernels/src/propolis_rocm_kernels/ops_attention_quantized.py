"""Attention of keys and values in blocks: decoding, and many queries at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_rocm_kernels import _attention
from propolis_rocm_kernels._attention import ARGUMENTS
from propolis_rocm_kernels._attention import GROUP
from propolis_rocm_kernels._attention import Options
from propolis_rocm_kernels._attention import Plan
from propolis_rocm_kernels._attention import attend
from propolis_rocm_kernels._attention import columns_of
from propolis_rocm_kernels._attention import decoding
from propolis_rocm_kernels._attention import few_queries
from propolis_rocm_kernels._attention import lanes_of
from propolis_rocm_kernels._attention import rows_in_packs
from propolis_rocm_kernels._attention import supports
from propolis_rocm_kernels._attention import tiles_of
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._implementation import implementation
from propolis_rocm_kernels._kernels import Module


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.attention import Window

MODULE: Final = Module("attention_quantized")

for _name in ("SIDE", "DECODE_THREADS", "GROUP", "MOST_PARTS"):
    MODULE.constant(_name, getattr(_attention, _name))

_QUERIES: Final = (dtypes.f32, dtypes.f16, dtypes.bf16)
_KEPT: Final = (dtypes.q8_0,)
_DECODE: Final = {
    (d, block, n, heads): MODULE.kernel(f"{name}{n}_{d.name}_{block.name}", ARGUMENTS)
    for d in _QUERIES
    for block in _KEPT
    for n in (8, 16, 32)
    for heads, name in ((1, "decode"), (GROUP, "grouped"))
}
_PREFILL: Final = {
    (d, block, n): MODULE.kernel(f"prefill{n}_{d.name}_{block.name}", ARGUMENTS)
    for d in _QUERIES
    for block in _KEPT
    for n in (1, 2, 4)
}


def qattention(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> None:
    """``attention`` of keys and values in blocks."""
    options = Options(scale, causal, window, softcap)
    attend(_choose, out, None, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))


def qattention_lse(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
) -> None:
    """The same, with the logarithm of each row's sum of exponentials."""
    options = Options(scale, causal, window, softcap)
    attend(_choose, out, lse, (q, k, v), options, (kv_len, bias, alibi, q_start, block_table))


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


def _record(name: str, fn: Any) -> Any:
    kinds = {"q": _QUERIES, "k": _KEPT}
    return replace(implementation(name, fn, kinds, in_place=False), supports=supports)


OPS: Final = [_record("qattention", qattention), _record("qattention_lse", qattention_lse)]
