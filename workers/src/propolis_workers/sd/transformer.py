"""The transformers of UNets: pixels are the tokens, a text is their context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import ops
from propolis_workers.sd.attention import Attention


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.layers import Weights

_NORM_EPS = 1e-6  # of the first norm, in every published UNet; the others have theirs in configs


class Transformer2D:
    """
    Transformer blocks over the pixels of a feature map, added to it.

    Their projections are linear layers over pixels, though many files store them as
    1x1 convolutions: that is the same product.
    """

    def __init__(
        self,
        weights: Weights,
        channels: int,
        heads: int,
        *,
        depth: int,
        context: int,
        groups: int,
        only_cross: bool,
    ) -> None:
        """
        Read the weights.

        Args:
            weights: where from.
            channels: of the feature map.
            heads: of each attention.
            depth: number of blocks.
            context: elements of a token of the context.
            groups: of the norm.
            only_cross: whether the first attention of a block is to the context too.
        """
        self.norm = weights.group_norm("norm", channels, groups, _NORM_EPS)
        self.proj_in = weights.linear("proj_in", channels, channels)
        self.blocks = [
            _Block(
                weights.sub(f"transformer_blocks.{n}"),
                channels,
                heads,
                context=context,
                only_cross=only_cross,
            )
            for n in range(depth)
        ]
        self.proj_out = weights.linear("proj_out", channels, channels)

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        """(b, channels, h, w) and (b, t, context) -> (b, channels, h, w)."""
        batch, channels, height, width = x.shape
        pixels = (batch, channels, height * width)
        y = self.proj_in(self.norm(x).reshape(*pixels).transpose(1, 2))
        for block in self.blocks:
            y = block(y, context)
        y = self.proj_out(y).transpose(1, 2)
        return ops.add(x.reshape(*pixels), y).reshape(*x.shape)


class _Block:
    """Attention to the pixels, attention to the context, a feed-forward network."""

    def __init__(
        self, weights: Weights, width: int, heads: int, *, context: int, only_cross: bool
    ) -> None:
        self.norm1 = weights.layer_norm("norm1", width)
        first = context if only_cross else 0
        self.attention1 = Attention(weights.sub("attn1"), width, heads, context=first)
        self.norm2 = weights.layer_norm("norm2", width)
        self.attention2 = Attention(weights.sub("attn2"), width, heads, context=context)
        self.norm3 = weights.layer_norm("norm3", width)
        self.up = weights.linear("ff.net.0.proj", width, 8 * width, whole=False)
        self.down = weights.linear("ff.net.2", 4 * width, width)
        self.only_cross = only_cross

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        y = self.attention1(self.norm1(x), context if self.only_cross else None)
        x = ops.add.into(y, y, x)
        y = self.attention2(self.norm2(x), context)
        x = ops.add.into(y, y, x)
        y = self.down(self._gated(self.norm3(x)))
        return ops.add.into(y, y, x)

    def _gated(self, x: Tensor) -> Tensor:
        """GEGLU (Shazeer 2020), with the exact GELU: the second half of ``up`` is the gate."""
        # Two products, not one and its halves: a third less memory where the UNet takes most.
        hidden, gate = (self._half(x, n) for n in range(2))
        return ops.gelu_erf_mul.into(gate, gate, hidden)

    def _half(self, x: Tensor, number: int) -> Tensor:
        weight, bias = self.up.weight, self.up.bias
        size = weight.shape[0] // 2
        part = bias.narrow(0, number * size, size) if bias is not None else None
        return ops.linear(x, weight.narrow(0, number * size, size), part)


__all__ = ["Transformer2D"]
