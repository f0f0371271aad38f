"""Attention: whole batches, ragged ones and paged caches."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import cast

from propolis import dtypes
from propolis_cpu_native._implementation import MANY
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import matrix_implementation
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import DType
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


def _supports_matrix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    **others: Any,
) -> str | None:
    """None, or why not."""
    if q.shape[1] < MANY:
        return f"{q.shape[1]} queries do not pay for packing keys"
    return supports(q, k, v, kv_len, **others)


def _functions(way: Way) -> tuple[Callable[..., None], Callable[..., None]]:
    """Attention without and with the logarithms."""

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
        _attend((out, None, q, k, v, *others), (scale, causal, window, softcap), way)

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
        _attend((out, lse, q, k, v, *others), (scale, causal, window, softcap), way)

    return attention, attention_lse


def _attend(
    tensors: tuple[Tensor | None, ...],
    options: tuple[float | None, bool, Window | None, float],
    way: Way,
) -> None:
    scale, causal, window, softcap = options
    left, right = window or (-1, -1)
    out, _, q, k, *_ = cast("tuple[Tensor, ...]", tensors)
    native().attention(
        *(None if t is None else t.array for t in tensors),
        KINDS[out.dtype],
        0 if k.dtype is q.dtype else _KEPT[k.dtype],
        q.shape[3] ** -0.5 if scale is None else scale,
        softcap,
        left,
        0 if causal else right,
        out.device.threads,
        way,
    )


KERNELS: Final = (_functions(Way.EXACT), _functions(Way.MATRIX))
"""Attention without and with the logarithms: in f32, and by tiles of matrices."""

_KEPT: Final[dict[DType, int]] = {dtypes.f16: 1, dtypes.bf16: 2, dtypes.q8_0: 3}
"""What keys and values may be kept as beside queries in f32, and its number there."""

_NAMES: Final = ("attention", "attention_lse")

_KEPT_DTYPES: Final = {"q": {dtypes.f32}, "k": frozenset(_KEPT)}

OPS: Final = [
    *(
        matrix_implementation(name, fn, supports=_supports_matrix, strided=True)
        for name, fn in zip(_NAMES, KERNELS[1], strict=True)
    ),
    *(
        matrix_implementation(
            f"q{name}",
            fn,
            dtypes=_KEPT_DTYPES,
            supports=_supports_matrix,
            strided=True,
            notes="by AMX; scores lose 2^-16, values and their weights are rounded to bf16",
            **(
                {}
                if matrix_instructions() == "AMX"
                else {"unusable": "vectors of f32 are faster, but for AMX's tiles of bf16"}
            ),
        )
        for name, fn in zip(_NAMES, KERNELS[1], strict=True)
    ),
    *(
        implementation(name, fn, supports=supports, strided=True)
        for name, fn in zip(_NAMES, KERNELS[0], strict=True)
    ),
    *(
        implementation(
            f"q{name}",
            fn,
            dtypes=_KEPT_DTYPES,
            supports=supports,
            strided=True,
        )
        for name, fn in zip(_NAMES, KERNELS[0], strict=True)
    ),
]
