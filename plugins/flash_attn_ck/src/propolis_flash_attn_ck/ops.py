"""Attention of many queries at once; what is better served by others is declined with a reason."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import OpImpl
from propolis import Priority
from propolis import Tensor
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARCHS
from propolis_flash_attn_ck._instances import ARGUMENTS
from propolis_flash_attn_ck._instances import BLOCK
from propolis_flash_attn_ck._instances import DTYPES
from propolis_flash_attn_ck._instances import HEAD_DIMS
from propolis_flash_attn_ck._instances import SIMULATED
from propolis_flash_attn_ck._instances import SIMULATED_CUDA
from propolis_flash_attn_ck._instances import TILE
from propolis_flash_attn_ck._instances import VALUES
from propolis_flash_attn_ck._instances import Instance


if TYPE_CHECKING:
    from propolis import Device
    from propolis.ops.attention import Window

FEW: Final = 16
"""Queries of a sequence up to which a tile of 128 would be wasted: decoding."""

PACK: Final = 8
"""Elements that are loaded at once: heads, strides and addresses are multiples of it."""

REACH: Final = 2**31
"""Bytes of a head's rows, and elements of a stride, that 32 bits hold."""

ROWS: Final = 1 << 18
"""Queries in all that the memory for sums which nobody asked for is enough for."""

_pack: Final = struct.Struct(ARGUMENTS).pack
_MASKED: Final = 2  # aligned at the end: Composable Kernel's bottom right
_ALL: Final = -1


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    kv_len: Tensor | None = None,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    q_start: Tensor | None = None,
    block_table: Tensor | None = None,
    **_: Any,
) -> str | None:
    """None, or why not."""
    if scale is not None and not scale > 0:  # what is masked would be NaN, or the largest
        return f"scale is {scale}: scores are masked before they are scaled, so it must be positive"
    rows, total, dim, value_dim = q.shape[0], q.shape[1], q.shape[3], v.shape[3]
    batch = rows if q_start is None else q_start.shape[0] - 1
    if total <= FEW * (batch if q_start is not None else 1):
        return (
            f"{total} queries of {batch} sequences, at most {FEW} of each on average: decoding "
            f"wastes a tile of {TILE}"
        )
    for name, given in (("bias", bias), ("alibi", alibi), ("block_table", block_table)):
        if given is not None:
            return f"{name}: the compiled kernels have none"
    if max(dim, value_dim) > HEAD_DIMS[-1] or dim % PACK or value_dim % PACK or value_dim == 0:
        return (
            f"head_dim {dim} and value_dim {value_dim}: multiples of {PACK} up to {HEAD_DIMS[-1]}"
        )
    parts = -(-value_dim // VALUES)
    if batch == 0 or batch * parts > 65535 or -(-total // TILE) > 65535 or total * rows > ROWS:
        return f"{batch} sequences of {total} queries in all: the grid has no room"
    for name, x in (("q", q), ("k", k), ("v", v)):
        strides = x.strides
        at = x.storage.ptr + x.layout.offset * x.dtype.block_bytes
        if strides[3] != 1 or any(s % PACK for s in strides[:3]) or at % (2 * PACK):
            return f"{name} has strides {strides}: rows must be whole packs of {PACK} elements"
        if x.shape[1] * abs(strides[1]) * 2 >= REACH or max(map(abs, strides)) >= REACH:
            return f"{name} has strides {strides}: rows of a head must lie within 2 GiB"
    row = q.shape[2] * value_dim  # of the output, which is contiguous
    if total * row * 2 >= REACH:
        return f"rows of the output are {row} elements apart: those of a head must lie within 2 GiB"
    for name, t in (("kv_len", kv_len), ("q_start", q_start)):
        if t is not None and t.numel > 1 and t.strides[0] != 1:
            return f"{name} has stride {t.strides[0]}: it must be contiguous"
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
    del bias, alibi, block_table  # declined
    _attend(out, None, (q, k, v), (kv_len, q_start), scale, _reach(causal, window), softcap)


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
    del bias, alibi, block_table  # declined
    _attend(out, lse, (q, k, v), (kv_len, q_start), scale, _reach(causal, window), softcap)


def _reach(causal: bool, window: Window | None) -> tuple[int, int]:
    """Keys seen to the left and right of a query's own; -1 for all."""
    left, right = window or (_ALL, _ALL)
    limit = 1 << 30  # sequences are shorter: sums stay within 32 bits
    return min(left, limit), 0 if causal else min(right, limit)


def _attend(
    out: Tensor,
    lse: Tensor | None,
    qkv: tuple[Tensor, Tensor, Tensor],
    lengths: tuple[Tensor | None, Tensor | None],
    scale: float | None,
    reach: tuple[int, int],
    softcap: float,
) -> None:
    q, k, v = qkv
    kv_len, q_start = lengths
    rows, total, heads, dim = q.shape
    batch = rows if q_start is None else q_start.shape[0] - 1
    device: Any = out.device
    most = max(dim, v.shape[3])
    instance = Instance(q.dtype, next(n for n in HEAD_DIMS if n >= most), bool(softcap))
    # Sums that nobody asked for, every head and sequence writes to one place.
    sums = (_at(lse), heads * total, total) if lse is not None else (_at(device.keep(_spare)), 0, 0)
    packed = _pack(
        *(_at(q), _at(k), _at(v), _at(out), sums[0], 0),
        *(_at(q_start), 0, _at(kv_len)),
        *(batch, total, k.shape[1], dim, v.shape[3], heads, k.shape[2]),
        *(dim**-0.5 if scale is None else scale, softcap),
        *(s for x in (q, k, v, out) for s in (x.strides[0], x.strides[2], x.strides[1])),
        *(0, 0, 0, *sums[1:]),
        *reach,
        0 if reach == (_ALL, _ALL) else _MASKED,
    )
    function = device.modules.function(_code.module_source(instance), instance.name)
    parts = -(-v.shape[3] // VALUES)  # each sums its own elements of the values
    function.launch((heads, -(-total // TILE), batch * parts), (BLOCK, 1, 1), 0, packed)


def _at(tensor: Tensor | None) -> int:
    """The address of the first element; 0 for none."""
    if tensor is None:
        return 0
    return int(tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes)


def _spare(device: Device) -> Tensor:
    """A little memory, which the device keeps, so that a captured step may use it."""
    return Tensor.from_numpy(np.zeros(ROWS, np.float32), device)


def _not_built(*_: Any, **__: Any) -> str:
    return "no code object for this card in this installation; a checkout builds it by `make ck`"


def _implement(name: str, fn: Any, arch: str) -> OpImpl:
    lacking = arch in ARCHS and arch not in _code.archs()
    return OpImpl(
        op=name,
        fn=fn,
        device="rocm",
        dtypes=tuple(DTYPES),
        archs=frozenset({*ARCHS, *SIMULATED, *([arch] * arch.startswith(SIMULATED_CUDA))}),
        priority=Priority.VENDOR,
        supports=_not_built if lacking else supports,
        capture_safe=True,
        exact=False,  # shares are rounded to the dtype before they weight the values
        workspace=4 * ROWS,
        notes="Composable Kernel, for CDNA 2 and 3; experimental: no card has run it yet",
    )


def implementations(arch: str) -> list[OpImpl]:
    """What a card of that architecture is offered; what was not compiled for it says so."""
    return [
        _implement("attention", attention, arch),
        _implement("attention_lse", attention_lse, arch),
    ]
