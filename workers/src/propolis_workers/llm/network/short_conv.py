"""A gated convolution over the last few tokens (LFM2, 2025), in place of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import Tensor
from propolis import ops


if TYPE_CHECKING:
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.kv_cache import Cache
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.network.rotation import Rotations


class ShortConv:
    """
    ``out(c * conv(b * x))``, with b, c and x from one product, each channel by itself.

    Its weights: ``conv_in``, ``conv_out`` and ``conv``, (width, taps), whose last tap is of the
    token itself.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        self.layer = layer
        self.taps = config.conv_taps
        name, width = f"layers.{layer}.", config.width
        self.into = weights.linear(name + "conv_in", width, 3 * width)
        self.out = weights.linear(name + "conv_out", width, width)
        taps = weights.taps(name + "conv", width, self.taps).numpy()
        self.weights = [
            weights.plain(Tensor.from_numpy(taps[:, tap].copy(), weights.device))
            for tap in range(self.taps)
        ]
        self.bias = weights.bias(name + "conv", width)

    def __call__(self, x: Tensor, positions: Tensor, ropes: Rotations, cache: Cache) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        del ropes
        width = x.shape[2]
        both = self.into(x)
        gate, scale, inner = (both.narrow(2, part * width, width) for part in range(3))
        inner = ops.mul(gate, inner)
        *before, own = self.weights
        y = ops.mul(inner, own.broadcast_to(*inner.shape))
        earlier = cache.before(self.layer, inner, positions, self.taps - 1)
        for weight, row in zip(before, earlier, strict=True):
            y = ops.add(y, ops.mul(row, weight.broadcast_to(*row.shape)))
        if self.bias is not None:
            y = ops.add(y, self.bias.broadcast_to(*y.shape))
        return self.out(ops.mul(scale, y))


__all__ = ["ShortConv"]
