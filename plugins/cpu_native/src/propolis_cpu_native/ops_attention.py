"""Attention: whole batches, ragged ones and paged caches."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis.ops.attention import Window


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    **others: Any,
) -> str | None:
    """None, or why not."""
    if bias is not None:
        return "there is a bias"
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.strides[3] != 1 and tensor.shape[3] > 1:
            return f"elements of {name}'s heads are not neighbours"
    for name, small in (("kv_len", kv_len), *others.items()):
        if hasattr(small, "layout") and not small.layout.is_contiguous:
            return f"{name} is strided"
    return None


def attention(
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
    """``softmax(cap(q @ k.T * scale) + mask) @ v`` for each head."""
    del bias
    others = (kv_len, q_start, block_table, alibi)
    _attend(out, None, (q, k, v), others, (scale, causal, window, softcap))


def attention_lse(
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
    del bias
    others = (kv_len, q_start, block_table, alibi)
    _attend(out, lse, (q, k, v), others, (scale, causal, window, softcap))


def _attend(
    out: Tensor,
    lse: Tensor | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    others: tuple[Tensor | None, ...],
    options: tuple[float | None, bool, Window | None, float],
) -> None:
    scale, causal, window, softcap = options
    left, right = window or (-1, -1)
    native().attention(
        out.array,
        None if lse is None else lse.array,
        *(t.array for t in qkv),
        *(None if t is None else t.array for t in others),
        KINDS[out.dtype],
        qkv[0].shape[3] ** -0.5 if scale is None else scale,
        softcap,
        left,
        0 if causal else right,
        out.device.threads,
    )


OPS: Final = [
    implementation("attention", attention, supports=supports, strided=True),
    implementation("attention_lse", attention_lse, supports=supports, strided=True),
]
