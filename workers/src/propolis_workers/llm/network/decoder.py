"""
Decoder-only transformers, in the ops of the core.

Shapes: b sequences, t new tokens, heads and kv_heads of head_dim elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import ClassVar

from propolis import dtypes
from propolis import ops
from propolis_workers.llm.layers import converted
from propolis_workers.llm.layers import sum_and_norm
from propolis_workers.llm.network.block import Block
from propolis_workers.llm.network.rotation import RopeTables


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.network.rotation import Rotations


class Decoder:
    """
    A whole model.

    Attributes:
        config: its numbers.
        device: where its weights are.
        rope: the rotations of its sequences.
        block_type: of its layers.
    """

    block_type: ClassVar[type[Block]] = Block

    def __init__(self, config: ModelConfig, weights: Layers) -> None:
        self.config = config
        self.device = weights.device
        self.embedding = weights.embedding("embedding", config.vocab_size, config.width)
        self.blocks = [self.block_type(config, weights, layer) for layer in range(config.layers)]
        self.norm = weights.norm("norm", config.width, config)
        self.output = weights.output(config, self.embedding)
        self.rope = RopeTables(config, weights.device)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        ropes: Rotations,
        cache: Cache,
        *,
        last_only: bool = True,
    ) -> Tensor:
        """
        The logits after new tokens, whose keys and values join the cache.

        Args:
            ids: (b, t), i64.
            positions: (b, t), i32: the position of each token in its sequence.
            ropes: the sequences' own, from ``self.rope``.
            cache: holds everything before; its lengths count the new tokens too.
            last_only: only the logits of the tokens that the cache wants: of each sequence the
                last, (b, 1, vocab_size); else all tokens': (b, t, vocab_size), f32.
        """
        config = self.config
        logits = self.output(self.states(ids, positions, ropes, cache, last_only=last_only))
        logits = converted(logits, dtypes.f32)
        if config.logit_scale != 1:
            logits = ops.affine(logits, config.logit_scale, 0.0)
        if config.logit_cap:
            logits = ops.tanh(ops.affine(logits, 1 / config.logit_cap, 0.0))
            logits = ops.affine(logits, config.logit_cap, 0.0)
        return logits

    def states(
        self,
        ids: Tensor,
        positions: Tensor,
        ropes: Rotations,
        cache: Cache,
        *,
        last_only: bool = True,
    ) -> Tensor:
        """What logits are made of: (b, 1 or t, width), after the last norm; as a call."""
        config = self.config
        x = self.embedding(ids)
        if config.embedding_scale != 1:
            x = ops.affine(x, config.embedding_scale, 0.0)
        y: Tensor | None = None
        for block in self.blocks:
            last = last_only and block is self.blocks[-1]
            x, y = block(x, y, positions, ropes, cache, last_only=last)
        return sum_and_norm(self.norm, x, y)[1]


__all__ = ["Decoder"]
