"""What queries read of the keys and values of a cache, by a layer's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from propolis import ops


if TYPE_CHECKING:
    from propolis import Tensor


class Room(NamedTuple):
    """
    Memory for the keys and values of new tokens.

    Attributes:
        kept: (batch, slots, 2 * kv_heads, head_dim): keys, and values beside them.
        slots: (batch, tokens), i32: which are the new tokens'.
    """

    kept: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class Rules:
    """
    How a layer weighs keys.

    Attributes:
        scale: of products of queries and keys; None for ``head_dim ** -0.5``.
        window: keys that a query sees, its own included; 0 for all.
        cap: of scores (soft); 0 for none.
        sinks: (heads,) f32: the score of one more key that has no value; None for none.
        as_kept: tokens, up to which queries are multiplied with keys as these are kept, of whatever
            dtype; those of more are rounded to that of the keys, where it is no block format.
    """

    scale: float | None = None
    window: int = 0
    cap: float = 0.0
    sinks: Tensor | None = None
    as_kept: int = 0


def as_kept(x: Tensor, other: Tensor) -> Tensor:
    """The same numbers in the dtype of another tensor, which may be a block format."""
    if x.dtype is other.dtype:
        return x
    return (ops.quantize if other.dtype.is_block else ops.cast)(x, other.dtype)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, rules: Rules, **places: Any
) -> Tensor:
    """
    Causal attention.

    Args:
        q: (batch, tokens, heads, head_dim), or ragged as ``ops.attention`` has it.
        keys: of the cache, as ``ops.attention`` takes them.
        values: likewise.
        lengths: of the sequences, i32.
        rules: the layer's.
        places: ``q_start`` and ``block_table``.

    Returns:
        Shape of ``q``, with the width of the values' heads last.
    """
    wide, narrower = q, keys.dtype is not q.dtype
    mixed = narrower and (keys.dtype.is_block or q.shape[1] <= rules.as_kept)
    if not mixed:
        q = as_kept(q, keys)
    said: dict[str, Any] = {"causal": True, "scale": rules.scale, "softcap": rules.cap, **places}
    if rules.window:
        said["window"] = (rules.window - 1, 0)
    if rules.sinks is None:
        attention = ops.qattention if mixed else ops.attention
        return as_kept(attention(q, keys, values, lengths, **said), wide)
    # A share of 1 / (1 + exp(sink - lse)) is left for the keys that are there.
    attention_lse = ops.qattention_lse if mixed else ops.attention_lse
    y, lse = attention_lse(q, keys, values, lengths, **said)
    y = as_kept(y, wide)
    heads = rules.sinks.unsqueeze(1).broadcast_to(*lse.shape)
    share = as_kept(ops.sigmoid(ops.sub(lse, heads)), y).permute(0, 2, 1).unsqueeze(3)
    return ops.mul(y, share.broadcast_to(*y.shape))


__all__ = ["Rules", "as_kept", "attend"]
