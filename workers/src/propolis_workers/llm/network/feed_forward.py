"""Feed-forward networks: gated, plain, and mixtures of gated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import ops
from propolis_workers.llm.layers import ACTIVATIONS
from propolis_workers.llm.layers import converted
from propolis_workers.llm.network.router import Router


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.layers import Layers
    from propolis_workers.llm.layers import RMSNorm


class Gated:
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020); ``gate`` and ``up`` may lie as one."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Layers,
        layer: int,
        *,
        width: int = 0,
        prefix: str = "",
    ) -> None:
        """
        Read the weights.

        Args:
            config: the model's numbers.
            weights: of the file.
            layer: which.
            width: elements inside; those of ``ffn_width`` when 0.
            prefix: of the weights' names, within the layer.
        """
        name, width = f"layers.{layer}.{prefix}", width or config.ffn_width
        self.gate_up = weights.merged_linear(
            {name + "gate": width, name + "up": width}, config.width, merged=name + "gate_up"
        )
        self.down = weights.linear(name + "down", width, config.width)
        self.gated = ACTIVATIONS[config.activation].gated
        self.joins_norm = self.gated is ops.silu_mul and weights.joins_norm(self.gate_up)

    def __call__(self, x: Tensor) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        gate, up = self.gate_up(x)
        return self.down(self.gated(gate, up))

    def of_sum(self, norm: RMSNorm, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """``x + y``, and the network of its norm, where it ``joins_norm``."""
        x, inner = self.gate_up.of_norm(norm, x, y, gated=True)
        return x, self.down(inner)


class Plain:
    """``down(activation(up(x)))``."""

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        name = f"layers.{layer}."
        self.up = weights.linear(name + "up", config.width, config.ffn_width)
        self.down = weights.linear(name + "down", config.ffn_width, config.width)
        self.activation = ACTIVATIONS[config.activation].plain

    def __call__(self, x: Tensor) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        return self.down(self.activation(self.up(x)))


class Mixture:
    """
    The sum of a token's experts, each weighted as the router says, and of what all tokens share.

    Its weights: ``router``, and of all experts together ``experts.gate``, ``experts.up`` and
    ``experts.down``; those of the shared network begin with ``shared.``, and ``shared_gate`` says
    how much of it a token takes, where the model has one.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        experts = config.experts
        assert experts is not None  # noqa: S101  the config of a model that has a mixture
        self.experts = experts
        name = f"layers.{layer}."
        sizes = experts.count, experts.width, config.width
        self.router = Router(config, weights, layer)
        self.gate = weights.experts(name + "experts.gate", *sizes)
        self.up = weights.experts(name + "experts.up", *sizes)
        self.down = weights.experts(
            name + "experts.down", experts.count, config.width, experts.width
        )
        self.gated = ACTIVATIONS[config.activation].gated
        self.shared = self.shared_gate = None
        if experts.shared_width:
            width = experts.shared_width
            self.shared = Gated(config, weights, layer, width=width, prefix="shared.")
            if weights.has(name + "shared_gate"):
                self.shared_gate = weights.linear(name + "shared_gate", config.width, 1)

    def __call__(self, x: Tensor) -> Tensor:
        """(b, t, width) -> (b, t, width)."""
        b, t, width = x.shape
        rows = x.reshape(b * t, width)
        shares, chosen = self.router(rows)
        each = rows.unsqueeze(1)
        y = self.gated(self.gate(each, chosen), self.up(each, chosen))
        y = self.down(y, chosen)
        shares = converted(shares, y.dtype)
        y = ops.sum(ops.mul(y, shares.unsqueeze(2).broadcast_to(*y.shape)), 1)
        if self.experts.scale != 1:
            y = ops.affine(y, self.experts.scale, 0.0)
        if self.shared is not None:
            common = self.shared(rows)
            if self.shared_gate is not None:
                share = ops.sigmoid(self.shared_gate(rows))
                common = ops.mul(common, share.broadcast_to(*common.shape))
            y = ops.add(y, common)
        return y.reshape(b, t, width)


__all__ = ["Gated", "Mixture", "Plain"]
