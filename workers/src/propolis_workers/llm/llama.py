"""
The llama architecture (Touvron et al. 2023), in the ops of the core.

Shapes: b sequences, t new tokens, heads and kv_heads of head_dim elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis.errors import ModelError
from propolis.rope import rope_frequencies as scaled_frequencies
from propolis_workers.llm.architecture import LLAMA3_KEYS


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.llm.architecture import ModelConfig
    from propolis_workers.llm.kv_cache import KVCache
    from propolis_workers.llm.layers import Layers

# Positions that rope tables begin with, and that are computed at a time.
_STEP = 4096


class Attention:
    """Grouped-query self-attention over a key-value cache."""

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        self.config = config
        self.layer = layer
        name = f"layers.{layer}."
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.qkv = weights.merged_linear(
            {name + "q": width, name + "k": kv_width, name + "v": kv_width},
            config.width,
        )
        self.o = weights.linear(name + "o", width, config.width)

    def __call__(self, x: Tensor, positions: Tensor, rope: RopeTables, cache: KVCache) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        b, t, _ = x.shape
        config = self.config
        q, k, v = (y.unflatten(2, config.head_dim) for y in self.qkv(x))
        q = rope(q, positions)
        k = rope(k, positions)
        keys, values = cache.append(self.layer, k, v, positions)
        y = ops.attention(q, keys, values, cache.lengths, causal=True)
        return self.o(y.reshape(b, t, config.heads * config.head_dim))


class FeedForward:
    """SwiGLU."""

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        name = f"layers.{layer}."
        self.gate_up = weights.merged_linear(
            {name + "gate": config.ffn_width, name + "up": config.ffn_width},
            config.width,
        )
        self.down = weights.linear(name + "down", config.ffn_width, config.width)

    def __call__(self, x: Tensor) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        gate, up = self.gate_up(x)
        return self.down(ops.silu_mul(gate, up))


class Block:
    """One layer: attention and feed-forward, each normalised before and added after."""

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        self.attention_norm = weights.rms_norm(
            f"layers.{layer}.attention_norm",
            config.width,
            config.norm_eps,
        )
        self.attention = Attention(config, weights, layer)
        self.ffn_norm = weights.rms_norm(f"layers.{layer}.ffn_norm", config.width, config.norm_eps)
        self.feed_forward = FeedForward(config, weights, layer)

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        rope: RopeTables,
        cache: KVCache,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """(b, t, width) -> (b, t, width), or (b, 1, width) of the last token alone."""
        x = ops.add(x, self.attention(self.attention_norm(x), positions, rope, cache))
        if last_only:
            x = x.narrow(1, x.shape[1] - 1, 1).contiguous()
        return ops.add(x, self.feed_forward(self.ffn_norm(x)))


class Llama:
    """
    The whole model.

    Attributes:
        config: its numbers.
        device: where its weights are.
    """

    def __init__(self, config: ModelConfig, weights: Layers) -> None:
        self.config = config
        self.device = weights.device
        self.embedding = weights.embedding("embedding", config.vocab_size, config.width)
        self.blocks = [Block(config, weights, layer) for layer in range(config.layers)]
        self.norm = weights.rms_norm("norm", config.width, config.norm_eps)
        tied = "embedding" if config.tied else ""
        self.output = weights.linear("output", config.width, config.vocab_size, tied=tied)
        factors = weights.vector("rope_factors", config.rope_dim // 2)
        self.rope = RopeTables(config, weights.device, factors)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        *,
        last_only: bool = True,
    ) -> Tensor:
        """
        The logits after new tokens, whose keys and values join the cache.

        Args:
            ids: (b, t), i64.
            positions: (b, t), i32: the position of each token in its sequence.
            cache: holds everything before; its lengths count the new tokens too.
            last_only: only the last token's logits: (b, 1, vocab_size); else all
                tokens': (b, t, vocab_size), f32.
        """
        x = self.embedding(ids)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, positions, self.rope, cache)
        x = last(x, positions, self.rope, cache, last_only=last_only)
        return self.output(self.norm(x))


class RopeTables:
    """
    Cosine and sine of the angles of every position that a sequence needed so far.

    Angles are computed in f64.  Not all positions from the start: a file may claim a
    context of any length.
    """

    def __init__(
        self, config: ModelConfig, device: Device, factors: np.ndarray | None = None
    ) -> None:
        """
        Prepare the tables.

        Args:
            config: the model's numbers.
            device: where the tables go.
            factors: (rope_dim / 2,): what divides the frequencies, if anything does.

        Raises:
            ModelError: a factor is no positive number.
        """
        if factors is not None and not np.all((factors > 0) & np.isfinite(factors)):
            msg = "tensor rope_freqs.weight holds factors that are not positive and finite"
            raise ModelError(msg)
        frequencies = rope_frequencies(config) / config.rope_scale
        self._frequencies = frequencies if factors is None else frequencies / factors
        self._limit = config.context_length
        self._device = device
        self.interleaved = config.rope_interleaved
        self.cos, self.sin = self._tables(min(_STEP, self._limit))

    def reserve(self, positions: int) -> None:
        """Have so many positions; steps captured before keep the tables they were given."""
        have = self.cos.shape[0]
        if positions > have:
            self.cos, self.sin = self._tables(min(max(positions, 2 * have), self._limit))

    def _tables(self, positions: int) -> tuple[Tensor, Tensor]:
        tables = np.empty((2, positions, len(self._frequencies)), np.float32)
        for start in range(0, positions, _STEP):  # bounds the memory in f64
            part = slice(start, min(start + _STEP, positions))
            angles = np.outer(np.arange(part.start, part.stop), self._frequencies)
            tables[0, part], tables[1, part] = np.cos(angles), np.sin(angles)
        cos, sin = (Tensor.from_numpy(table, self._device) for table in tables)
        return cos, sin

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """(b, t, heads, head_dim) -> the same, rotated."""
        return ops.rope(x, positions, self.cos, self.sin, interleaved=self.interleaved)


def rope_frequencies(config: ModelConfig) -> np.ndarray:
    """The angle per position of each pair, f64 (rope_dim / 2,), before linear scaling."""
    scaling: dict[str, object] = {"rope_type": "default"}
    if config.rope_llama3 is not None:
        scaling = {"rope_type": "llama3", **dict(zip(LLAMA3_KEYS, config.rope_llama3, strict=True))}
    return scaled_frequencies(config.rope_dim, config.rope_base, scaling)[0]


__all__ = ["Llama", "RopeTables", "rope_frequencies"]
