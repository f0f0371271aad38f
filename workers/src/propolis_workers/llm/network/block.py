"""One layer of a transformer: attention and a feed-forward network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from propolis import ops
from propolis_workers.llm.layers import RMSNorm
from propolis_workers.llm.layers import sum_and_norm
from propolis_workers.llm.network.attention import Attention
from propolis_workers.llm.network.feed_forward import Gated
from propolis_workers.llm.network.feed_forward import Mixture
from propolis_workers.llm.network.feed_forward import Plain
from propolis_workers.llm.network.latent import LatentAttention
from propolis_workers.llm.network.short_conv import ShortConv


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.layers import Norm
    from propolis_workers.llm.network.rotation import Rotations


Mixer = Attention | LatentAttention | ShortConv


class Block:
    """
    Attention and feed-forward, one after the other, or side by side where the config says so.

    Each is normalised before or after, as the architecture has names of norms:
    ``attention_norm`` and ``ffn_norm`` before, ``attention_post_norm`` and ``ffn_post_norm``
    after.  Side by side, both read what ``attention_norm`` gives, unless there is an
    ``ffn_norm``.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        self.config = config
        self.attention_norm = self.norm(weights, layer, "attention_norm")
        self.attention = mixer(config, weights, layer)
        self.attention_post_norm = self.norm(weights, layer, "attention_post_norm")
        self.ffn_norm = self.norm(weights, layer, "ffn_norm")
        self.feed_forward = feed_forward(config, weights, layer)
        self.ffn_post_norm = self.norm(weights, layer, "ffn_post_norm")
        # A sum, its norm and the first product as one op, where the device has it: on the CPU of
        # any rows, as nothing is computed while the next op is looked up; on others of one row,
        # as of more the product takes so long that what goes before it does not count.
        self.joins_rows = weights.device.kind == "cpu"
        self.joined_attention = _joined(self.attention, self.attention_norm)
        self.joined_ffn = _joined(self.feed_forward, self.ffn_norm)
        if config.parallel:
            self.joined_attention = self.joined_ffn = None

    def __call__(
        self,
        x: Tensor,
        y: Tensor | None,
        positions: Tensor,
        ropes: Rotations,
        cache: Cache,
        *,
        last_only: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """
        Go through the layer.

        Args:
            x: (b, t, width).
            y: what the layer before adds to it, the same; None for nothing.
            positions: (b, t), i32.
            ropes: the sequences' own.
            cache: what they have been told before.
            last_only: go on with what the cache wants alone.

        Returns:
            Two such tensors, whose sum is the result: who is next adds and normalises at once.
        """
        few = self.joins_rows or x.numel == x.shape[-1]
        if few and y is not None and self.joined_attention is not None:
            x, y = self.joined_attention(x, y, positions, ropes, cache)
        else:
            x, inner = sum_and_norm(self.attention_norm, x, y)
            y = self.attention(inner, positions, ropes, cache)
        y = self._scaled(_through(self.attention_post_norm, y))
        if last_only:
            x, y = cache.wanted(x), cache.wanted(y)
            few = self.joins_rows or x.numel == x.shape[-1]
        if self.config.parallel:
            if self.ffn_norm is not None:
                inner = self.ffn_norm(x)
            elif last_only:
                inner = cache.wanted(inner)
            x = ops.add(x, y)
            y = self.feed_forward(inner)
        elif few and self.joined_ffn is not None:
            x, y = self.joined_ffn(x, y)
        else:
            x, inner = sum_and_norm(self.ffn_norm, x, y)
            y = self.feed_forward(inner)
        return x, self._scaled(_through(self.ffn_post_norm, y))

    def norm(self, weights: Layers, layer: int, name: str) -> Norm | None:
        """One of its norms, which the architecture may not have."""
        full = f"layers.{layer}.{name}"
        spare = self.config.parallel and name == "ffn_norm" and not weights.has(full)
        if spare or not weights.knows(full):
            return None
        return weights.norm(full, self.config.width, self.config)

    def _scaled(self, y: Tensor) -> Tensor:
        scale = self.config.residual_scale
        return y if scale == 1 else ops.affine(y, scale, 0.0)


def mixer(config: ModelConfig, weights: Layers, layer: int) -> Mixer:
    """What the config says that a layer reads other tokens by."""
    if config.convolved and config.convolved[layer]:
        return ShortConv(config, weights, layer)
    return (Attention if config.latent is None else LatentAttention)(config, weights, layer)


def feed_forward(config: ModelConfig, weights: Layers, layer: int) -> Callable[[Tensor], Tensor]:
    """The feed-forward network that the config says a layer has."""
    if config.has_experts(layer):
        return Mixture(config, weights, layer)
    return (Gated if config.gated else Plain)(config, weights, layer)


def _joined(
    part: Mixer | Callable[[Tensor], Tensor], norm: Norm | None
) -> Callable[..., tuple[Tensor, Tensor]] | None:
    if isinstance(part, Attention | Gated) and part.joins_norm and isinstance(norm, RMSNorm):
        return partial(part.of_sum, norm)
    return None


def _through(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


__all__ = ["Block", "feed_forward"]
