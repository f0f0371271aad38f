"""Attention with its projections, as text encoder, UNet and VAE have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import ops


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.layers import Weights

DIFFUSERS = ("to_q", "to_k", "to_v", "to_out.0")
"""What diffusers calls the projections: queries, keys, values, output."""
TRANSFORMERS = ("q_proj", "k_proj", "v_proj", "out_proj")
"""What transformers calls them."""


class Attention:
    """Multi-head attention (Vaswani et al. 2017) over tokens or over a context."""

    def __init__(
        self,
        weights: Weights,
        width: int,
        heads: int,
        *,
        context: int = 0,
        names: tuple[str, str, str, str] = DIFFUSERS,
        bias: bool = False,
        causal: bool = False,
    ) -> None:
        """
        Read the weights.

        Args:
            weights: where from.
            width: elements of a token.
            heads: divides ``width``.
            context: elements of a token of the context; ``width`` when 0.
            names: of the projections.
            bias: whether queries, keys and values have one; the output always has.
            causal: whether a token sees itself and those before it alone.
        """
        q, k, v, out = names
        self.q = weights.linear(q, width, width, bias=bias)
        self.k = weights.linear(k, context or width, width, bias=bias)
        self.v = weights.linear(v, context or width, width, bias=bias)
        self.out = weights.linear(out, width, width)
        self.head_dim = width // heads
        self.causal = causal

    def __call__(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """(b, t, width), and (b, n, context) or the same tokens -> (b, t, width)."""
        return self.out(self._attend(x, x if context is None else context))

    def _attend(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.q(x).unflatten(2, self.head_dim)
        k = self.k(context).unflatten(2, self.head_dim)
        v = self.v(context).unflatten(2, self.head_dim)
        return ops.attention(q, k, v, causal=self.causal).reshape(*x.shape)


__all__ = ["DIFFUSERS", "TRANSFORMERS", "Attention"]
