"""Which experts a token is given to, and how much each counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.llm.layers import converted


if TYPE_CHECKING:
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.layers import Layers


class Router:
    """
    The likeliest experts of each token, by a linear layer.

    Its weights: ``router``, and where an architecture has it ``router_bias``, which is added to
    scores as experts are chosen and not as they are weighted.
    """

    def __init__(self, config: ModelConfig, weights: Layers, layer: int) -> None:
        experts = config.experts
        assert experts is not None  # noqa: S101  the config of a model that has a mixture
        self.experts = experts
        name = f"layers.{layer}."
        self.linear = weights.linear(name + "router", config.width, experts.count)
        self.bias = None
        if weights.has(name + "router_bias", ""):
            self.bias = weights.vector(name + "router_bias", experts.count, "", dtype=dtypes.f32)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, width) -> shares (tokens, used), f32, and experts (tokens, used), i64."""
        experts = self.experts
        logits = converted(self.linear(x), dtypes.f32)
        if experts.score == "softmax" and experts.groups == 1 and self.bias is None:
            return ops.moe_gate(logits, experts.used, renormalize=experts.renormalize)
        scores = ops.sigmoid(logits) if experts.score == "sigmoid" else ops.softmax(logits, -1)
        rated = scores
        if self.bias is not None:
            rated = ops.add(scores, self.bias.unsqueeze(0).broadcast_to(*scores.shape))
        if experts.groups > 1:
            rated = self._of_best_groups(rated)
        _, chosen = ops.topk(rated, experts.used)
        shares = ops.gather(scores, chosen)
        if experts.renormalize:
            total = ops.sum(shares, -1).unsqueeze(1)
            shares = ops.div(shares, total.broadcast_to(*shares.shape))
        return shares, chosen

    def _of_best_groups(self, rated: Tensor) -> Tensor:
        """The same, -inf for experts of groups that are not among the best."""
        experts, tokens = self.experts, rated.shape[0]
        members = rated.unflatten(1, experts.count // experts.groups)
        best, _ = ops.topk(members, experts.group_best)
        _, groups = ops.topk(ops.sum(best, -1), experts.groups_used)
        shape = (tokens, experts.groups)
        taken = ops.full(shape, 0, dtypes.i32, rated.device)
        ops.scatter(taken, groups, ops.full(groups.shape, 1, dtypes.i32, rated.device), 1)
        never = ops.full((1, 1, 1), -float("inf"), rated.dtype, rated.device)
        taken = taken.unsqueeze(2).broadcast_to(*members.shape)
        kept = ops.where(taken, members, never.broadcast_to(*members.shape))
        return kept.reshape(tokens, experts.count)


__all__ = ["Router"]
