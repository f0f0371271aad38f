"""Grouped-query self-attention over a key-value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis import ops
from propolis_workers.llm.layers import KEPT
from propolis_workers.llm.layers import TURNED
from propolis_workers.llm.network.attending import Rules


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis.dtypes import DType
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.layers import RMSNorm
    from propolis_workers.llm.network.rotation import Rotations

# Tokens of a step that decodes; with more, products of 16 bits are worth rounding queries on a GPU.
_FEW = 4
_ANY = 1 << 31
# Elements of a head: what kernels load at once, and hold.
_RUN, _WIDEST = 8, 256


def _as_kept(weights: Layers, config: ModelConfig, kept: DType) -> int:
    """See :attr:`Rules.as_kept`."""
    widths = config.head_dim, config.values_dim
    if kept not in ops.qattention.dtypes["k"] or any(n % _RUN or n > _WIDEST for n in widths):
        return 0
    if not weights.has_kernel(ops.qattention, weights.dtype, kept):
        return 0
    return _FEW if weights.rounds_queries else _ANY


class Attention:
    """
    Softmax attention of rotated queries and keys, whose heads may be shared.

    Of its weights ``q``, ``k`` and ``v`` may lie as one, ``qkv``; biases are added where the file
    has them, and ``q_norm`` and ``k_norm`` normalise, each head or all heads together, as wide as
    they are.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        self.config = config
        self.layer = layer
        name = f"layers.{layer}."
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        out_width = config.heads * config.values_dim
        self.qkv = weights.merged_linear(
            {
                name + "q": width,
                name + "k": kv_width,
                name + "v": config.kv_heads * config.values_dim,
            },
            config.width,
            merged=name + "qkv",
        )
        self.o = weights.linear(name + "o", out_width, config.width)
        self.q_norm = self._norm(weights, "q_norm", config.heads)
        self.k_norm = self._norm(weights, "k_norm", config.kv_heads)
        self.kind = config.rope_kind(layer)
        # Queries and keys that lie side by side, and are turned alike.
        joined = len(self.qkv.layers) == 1 and not (self.q_norm or self.k_norm)
        self.turns_together = joined and self.kind >= 0
        # Such keys are turned as they are kept, where a kernel does both.
        kept = config.kept_as(layer)
        self.turns_kept = (
            self.turns_together
            and config.head_dim == config.values_dim
            and weights.dtype in (dtypes.f32, kept)
            and kept in ops.rope_kv_append.dtypes["cache"]
            and weights.has_kernel(ops.rope_kv_append, kept)
        )
        self.joins_norm = weights.joins_norm(self.qkv)
        # Or turned, or both, in the product that makes them.
        even = self.turns_together and config.head_dim % 2 == 0
        self.keeps_in_product = even and self.turns_kept and weights.joins_norm(self.qkv, KEPT)
        self.turns_in_product = (
            even and config.head_dim == config.values_dim and weights.joins_norm(self.qkv, TURNED)
        )
        self.rules = Rules(
            scale=config.score_scale or None,
            window=config.window(layer),
            cap=config.score_cap,
            sinks=weights.vector(name + "sinks", config.heads, "", dtype=dtypes.f32)
            if weights.has(name + "sinks", "")
            else None,
            as_kept=_as_kept(weights, config, kept),
        )

    def __call__(self, x: Tensor, positions: Tensor, ropes: Rotations, cache: Cache) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        if len(self.qkv.layers) == 1:
            return self._of_product(self.qkv.layers[0](x), positions, ropes, cache)
        q, k, v = self._turned_apart(self.qkv(x), positions, ropes)
        return self._attended(q, k, v, positions, cache)

    def of_sum(
        self,
        norm: RMSNorm,
        x: Tensor,
        y: Tensor,
        positions: Tensor,
        ropes: Rotations,
        cache: Cache,
    ) -> tuple[Tensor, Tensor]:
        """``x + y``, and the attention of its norm, where it ``joins_norm``."""
        config = self.config
        if self.keeps_in_product:
            room, rotation = cache.room(self.layer, positions), ropes[self.kind]
            x, q = self.qkv.kept_of_norm(norm, x, y, room, positions, rotation, config.heads)
            return x, self._out(cache.read(self.layer, q, self.rules))
        if self.turns_kept or not self.turns_in_product:
            x, every = self.qkv.of_norm(norm, x, y)
            return x, self._of_product(every, positions, ropes, cache)
        heads, dim = config.heads + config.kv_heads, config.head_dim
        x, every = self.qkv.turned_of_norm(norm, x, y, positions, ropes[self.kind], heads, dim)
        return x, self._attended(*self._sides(every, self._turning(every)), positions, cache)

    def _of_product(
        self, every: Tensor, positions: Tensor, ropes: Rotations, cache: Cache
    ) -> Tensor:
        if self.turns_kept:
            q, new = self._beside(every)
            rotation, (kept, slots) = ropes[self.kind], cache.room(self.layer, positions)
            rotation.append(kept, new, slots, positions)
            return self._out(cache.read(self.layer, rotation(q, positions), self.rules))
        if self.turns_together:
            turned = ropes[self.kind](self._turning(every), positions)
            q, k, v = self._sides(every, turned)
        else:
            q, k, v = self._turned_apart(self.qkv.parts_of(every), positions, ropes)
        return self._attended(q, k, v, positions, cache)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        v = v.unflatten(2, self.config.values_dim)
        return self._out(cache.attend(self.layer, q, k, v, positions, self.rules))

    def _beside(self, every: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and keys beside values."""
        width, *others = self.qkv.widths
        dim = self.config.head_dim
        q = every.narrow(2, 0, width).unflatten(2, dim)
        return q, every.narrow(2, width, sum(others)).unflatten(2, dim)

    def _out(self, y: Tensor) -> Tensor:
        b, t, heads, dim = y.shape
        return self.o(y.reshape(b, t, heads * dim))

    def _turning(self, every: Tensor) -> Tensor:
        """Queries and keys, side by side."""
        *turning, _ = self.qkv.widths
        return every.narrow(2, 0, sum(turning)).unflatten(2, self.config.head_dim)

    def _sides(self, every: Tensor, turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, each by itself, and the values beside which they lay."""
        config = self.config
        *turning, values = self.qkv.widths
        q, k = (
            turned.narrow(2, start, count)
            for start, count in ((0, config.heads), (config.heads, config.kv_heads))
        )
        return q, k, every.narrow(2, sum(turning), values)

    def _turned_apart(
        self, parts: list[Tensor], positions: Tensor, ropes: Rotations
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        q, k, v = parts
        q = self.q_norm(q) if self.q_norm else q.unflatten(2, config.head_dim)
        k = self.k_norm(k) if self.k_norm else k.unflatten(2, config.head_dim)
        if self.kind >= 0:
            q = ropes[self.kind](q, positions)
            k = ropes[self.kind](k, positions)
        return q, k, v

    def _norm(self, weights: Layers, which: str, heads: int) -> Callable[[Tensor], Tensor] | None:
        """(b, t, width) -> (b, t, heads, head_dim), normalised; None where the model has none."""
        name, dim = f"layers.{self.layer}.{which}", self.config.head_dim
        if not weights.has(name):
            return None
        shape = weights.shape(name)
        if shape == (heads * dim,) != (dim,):
            whole = weights.norm(name, heads * dim, self.config)
            return lambda x: whole(x).unflatten(2, dim)
        shared = shape == (dim,) and not weights.several(name)
        each = weights.norm(name, dim, self.config, 0 if shared else heads)
        return lambda x: each(x.unflatten(2, dim))


__all__ = ["Attention"]
