"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values from a narrow common part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis_workers.layers import Linear
from propolis_workers.llm.network.attending import Rules


if TYPE_CHECKING:
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.network.rotation import Rotations


class LatentAttention:
    """
    Attention whose keys and values are products of ``latent`` numbers of each token.

    The last elements of a head are rotated, and of keys they are the same in all heads.  The cache
    holds keys and values as they are computed, not the latent numbers.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        latent = config.latent
        assert latent is not None  # noqa: S101  the config of a model that has one
        self.config, self.layer, self.latent = config, layer, latent
        name = f"layers.{layer}."
        q_width = config.heads * config.head_dim
        self.q_a = self.q_norm = None
        if latent.queries:
            self.q_a = weights.linear(name + "q_a", config.width, latent.queries)
            self.q_norm = weights.norm(name + "q_a_norm", latent.queries, config)
        which = name + ("q_b" if latent.queries else "q")
        self.q = weights.linear(which, latent.queries or config.width, q_width)
        self.turned = config.ropes[0].dim
        self.plain = config.head_dim - self.turned
        self.kv_a = weights.linear(name + "kv_a", config.width, latent.keys + self.turned)
        self.kv_norm = weights.norm(name + "kv_a_norm", latent.keys, config)
        self.kv = self._expanding(weights, name)
        self.o = weights.linear(name + "o", config.heads * config.values_dim, config.width)
        self.rules = Rules(scale=config.score_scale or None)

    def __call__(self, x: Tensor, positions: Tensor, ropes: Rotations, cache: Cache) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        b, t, _ = x.shape
        config, plain, turned = self.config, self.plain, self.turned
        q = x if self.q_a is None or self.q_norm is None else self.q_norm(self.q_a(x))
        q = self.q(q).unflatten(2, config.head_dim)
        q_turned = ropes[0](q.narrow(3, plain, turned), positions)
        q = ops.cat([q.narrow(3, 0, plain), q_turned], 3)

        both = self.kv_a(x)
        k_turned = ropes[0](both.narrow(2, self.latent.keys, turned).unsqueeze(2), positions)
        kv = self.kv(self.kv_norm(both.narrow(2, 0, self.latent.keys).contiguous()))
        kv = kv.unflatten(2, plain + config.values_dim)
        shared = k_turned.broadcast_to(b, t, config.heads, turned)
        k = ops.cat([kv.narrow(3, 0, plain), shared], 3)
        v = kv.narrow(3, plain, config.values_dim)
        y = cache.attend(self.layer, q, k, v, positions, self.rules)
        return self.o(y.reshape(b, t, config.heads * config.values_dim))

    def _expanding(self, weights: Layers, name: str) -> Linear:
        """From latent numbers to keys and values; newer GGUF files hold it in two parts."""
        config, latent = self.config, self.latent.keys
        each = self.plain + config.values_dim
        if not weights.has(name + "k_b"):
            return weights.linear(name + "kv_b", latent, config.heads * each)
        k = weights.array(name + "k_b", (config.heads, latent, self.plain)).swapaxes(1, 2)
        v = weights.array(name + "v_b", (config.heads, config.values_dim, latent))
        both = np.concatenate([k, v], 1).reshape(config.heads * each, latent)
        return Linear(weights.plain(Tensor.from_numpy(both, weights.device)))


__all__ = ["LatentAttention"]
