"""CLIP's text encoder (Radford et al. 2021): those of Stable Diffusion 1, 2 and XL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis.errors import ModelError
from propolis_workers.sd.attention import TRANSFORMERS
from propolis_workers.sd.attention import Attention


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_workers.sd.config import CLIPTextConfig
    from propolis_workers.sd.layers import Weights

ALIASES: Final = (("text_model.", ""),)
"""Published files have the prefix; those that transformers 5 writes have not."""

_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "quick_gelu": ops.quick_gelu,
    "gelu": ops.gelu_erf,
    "gelu_new": ops.gelu,
}


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """
    What a text encoder makes of texts.

    Attributes:
        last: (b, t, width), each token after the final norm.
        penultimate: (b, t, width), before the last block, not normed.
        pooled: (b, width), ``last`` at the end of the text; (b, projection) where the
            encoder has a projection.
    """

    last: Tensor
    penultimate: Tensor
    pooled: Tensor


class CLIPText:
    """
    A text encoder.

    Attributes:
        config: its settings.
        final_norm: what makes ``last`` of the last block's output.
    """

    def __init__(self, config: CLIPTextConfig, weights: Weights) -> None:
        """
        Read the weights.

        Raises:
            ModelError: a tensor is missing or has another shape.
        """
        self.config = config
        width = config.hidden_size
        model = weights.sub("text_model")
        tables = model.sub("embeddings")
        self.tokens = tables.embedding("token_embedding", config.vocab_size, width)
        places = (config.max_position_embeddings, width)
        self.places = tables.tensor("position_embedding.weight", places)
        self.blocks = [
            _Block(config, model.sub(f"encoder.layers.{n}"))
            for n in range(config.num_hidden_layers)
        ]
        self.final_norm = model.layer_norm("final_layer_norm", width, config.layer_norm_eps)
        self.projection = None
        has_one = config.projected
        if has_one if has_one is not None else weights.has("text_projection.weight"):
            size = config.projection_dim
            self.projection = weights.linear("text_projection", width, size, bias=False)
        end = np.full((1, 1), config.eos_token_id, np.int64)
        self._end = Tensor.from_numpy(end, weights.device)

    def __call__(self, ids: Tensor) -> TextFeatures:
        """
        Encode texts of one length.

        Args:
            ids: (b, t), i64, with the start and end tokens.

        Raises:
            ModelError: they are longer than the encoder's longest text.
        """
        tokens, longest = ids.shape[1], self.config.max_position_embeddings
        if not 0 < tokens <= longest:
            msg = f"a text of {tokens} tokens; supported: 1 to {longest}"
            raise ModelError(msg)
        x = self.tokens(ids)
        x = penultimate = ops.add.into(x, x, self.places.narrow(0, 0, tokens))
        for block in self.blocks:
            penultimate = x
            x = block(x)
        last = self.final_norm(x)
        pooled = self._at_end(last, ids)
        if self.projection is not None:
            pooled = self.projection(pooled)
        return TextFeatures(last, penultimate, pooled)

    def _at_end(self, last: Tensor, ids: Tensor) -> Tensor:
        """``last`` at the end token of each text, (b, width)."""
        # Files made before the id was corrected say 2; the end token has the largest id.
        found = ids if self.config.eos_token_id == 2 else ops.eq(ids, self._end)
        batch, _, width = last.shape
        at = ops.argmax(found, 1).reshape(batch, 1, 1).broadcast_to(batch, 1, width)
        return ops.gather(last, at, 1).reshape(batch, width)


class _Block:
    """Attention to earlier tokens and a feed-forward network, each after a norm."""

    def __init__(self, config: CLIPTextConfig, weights: Weights) -> None:
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.norm1 = weights.layer_norm("layer_norm1", width, eps)
        self.attention = Attention(
            weights.sub("self_attn"),
            width,
            config.num_attention_heads,
            names=TRANSFORMERS,
            bias=True,
            causal=True,
        )
        self.norm2 = weights.layer_norm("layer_norm2", width, eps)
        self.fc1 = weights.linear("mlp.fc1", width, inner)
        self.fc2 = weights.linear("mlp.fc2", inner, width)
        self.activation = _ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.attention(self.norm1(x))
        x = ops.add.into(y, y, x)
        y = self.fc2(self.activation(self.fc1(self.norm2(x))))
        return ops.add.into(y, y, x)


__all__ = ["ALIASES", "CLIPText", "TextFeatures"]
