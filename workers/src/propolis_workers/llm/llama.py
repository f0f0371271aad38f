"""
The llama architecture (Touvron et al. 2023), in the ops of the core.

Shapes: b sequences, t new tokens, heads and kv_heads of head_dim elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.llm.rope import rope_tables


if TYPE_CHECKING:
    from propolis import Device
    from propolis_workers.llm.architecture import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
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

    def __call__(self, x: Tensor, positions: Tensor, rope: Rotation, cache: Cache) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        b, t, _ = x.shape
        config = self.config
        q, k, v = (y.unflatten(2, config.head_dim) for y in self.qkv(x))
        q = rope(q, positions)
        k = rope(k, positions)
        y = cache.attend(self.layer, q, k, v, positions)
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
        rope: Rotation,
        cache: Cache,
        *,
        last_only: bool = False,
    ) -> Tensor:
        """(b, t, width) -> the same, or what the cache wants of it alone."""
        x = ops.add(x, self.attention(self.attention_norm(x), positions, rope, cache))
        if last_only:
            x = cache.wanted(x)
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
        self.rope = RopeTables(config, weights.device)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        rope: Rotation,
        cache: Cache,
        *,
        last_only: bool = True,
    ) -> Tensor:
        """
        The logits after new tokens, whose keys and values join the cache.

        Args:
            ids: (b, t), i64.
            positions: (b, t), i32: the position of each token in its sequence.
            rope: the sequences' own, from ``self.rope``.
            cache: holds everything before; its lengths count the new tokens too.
            last_only: only the logits of the tokens that the cache wants: of each sequence the
                last, (b, 1, vocab_size); else all tokens': (b, t, vocab_size), f32.
        """
        x = self.embedding(ids)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, positions, rope, cache)
        x = last(x, positions, rope, cache, last_only=last_only)
        return self.output(self.norm(x))


class Rotation:
    """
    Turns queries and keys by the angles of their positions.

    Attributes:
        cos: (positions, rope_dim / 2) f32, on the device.
        sin: same shape.
        interleaved: whether pairs are neighbours.
    """

    def __init__(self, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
        self.cos = cos
        self.sin = sin
        self.interleaved = interleaved

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """(b, t, heads, head_dim) -> the same, rotated."""
        return ops.rope(x, positions, self.cos, self.sin, interleaved=self.interleaved)


class RopeTables:
    """
    The rotations of sequences, for all the positions that one needed so far.

    Not all positions from the start: a file may claim a context of any length.
    """

    def __init__(self, config: ModelConfig, device: Device) -> None:
        self._config = config
        self._device = device
        # The last rotation, and the length that it was made for; swapped at once, as sequences
        # may begin in several threads.
        self._last: tuple[int, Rotation] | None = None

    def reserve(self, length: int) -> Rotation:
        """
        The rotation of a sequence that may have so many tokens.

        It is the sequence's own from then on: keys that it turned stay as they are, and where
        angles depend on the length, another sequence has others.
        """
        rows, last = max(length, _STEP), self._last
        if last is not None and self.alike(length, last[0]):
            have = last[1].cos.shape[0]
            if length <= have:
                return last[1]
            rows = max(length, 2 * have)
        rotation = self._made(length, min(rows, self._config.context_length))
        self._last = length, rotation
        return rotation

    def alike(self, length: int, other: int) -> bool:
        """Whether sequences that may have so many tokens are turned by the same angles."""
        config = self._config
        one, two = (
            rope_frequencies(config.rope_dim, config.rope_base, config.rope_scaling, tokens)[0]
            for tokens in (length, other)
        )
        return np.array_equal(one, two)

    def _made(self, length: int, rows: int) -> Rotation:
        config = self._config
        tables = np.empty((2, rows, config.rope_dim // 2), np.float32)
        for start in range(0, rows, _STEP):  # bounds the memory in f64
            positions = np.arange(start, min(start + _STEP, rows))
            tables[:, positions] = rope_tables(
                config.rope_dim, positions, config.rope_base, config.rope_scaling, length
            )
        cos, sin = (Tensor.from_numpy(table, self._device) for table in tables)
        return Rotation(cos, sin, interleaved=config.rope_interleaved)


__all__ = ["Llama", "RopeTables", "Rotation"]
