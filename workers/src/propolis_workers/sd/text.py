"""What the UNet is told about the text: embeddings by one text encoder, or by SDXL's two."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import ops
from propolis.errors import ModelError
from propolis_workers.sd.unet import AddedConditions


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import Device
    from propolis_workers.sd.clip import CLIPText
    from propolis_workers.sd.tokenizer import CLIPTokenizer


@dataclass(frozen=True, slots=True)
class TextEmbeddings:
    """
    What is known of one text.

    Attributes:
        context: (1, t, d), for the UNet's attention.
        pooled: (1, d), for SDXL; None for others.
        cut: the part of the text that did not fit; empty where all did.
    """

    context: Tensor
    pooled: Tensor | None
    cut: str = ""

    def zeroed(self) -> TextEmbeddings:
        """The same shapes of zeros: SDXL's way of having no negative prompt."""
        pooled = None if self.pooled is None else ops.affine(self.pooled, 0.0, 0.0)
        return TextEmbeddings(ops.affine(self.context, 0.0, 0.0), pooled)


class TextEncoder:
    """The text encoders of a model with their tokenizers."""

    def __init__(
        self,
        encoders: Sequence[CLIPText],
        tokenizers: Sequence[CLIPTokenizer],
        device: Device,
        *,
        pooled: bool,
    ) -> None:
        """
        Put them together.

        Args:
            encoders: one, or SDXL's two.
            tokenizers: one for each.
            device: where the encoders are.
            pooled: whether the UNet takes a pooled embedding too, as SDXL's does; its
                context is then of the layers before the last.
        """
        self._pairs = list(zip(encoders, tokenizers, strict=True))
        self._device = device
        self._pooled = pooled
        self._most = 0
        self._kept: OrderedDict[str, TextEmbeddings] = OrderedDict()

    def keep(self, most: int) -> None:
        """Remember what the last so many texts became, for who asks for the same again."""
        self._most = most
        self.forget()

    def forget(self) -> None:
        """Forget what texts became: the weights have changed."""
        self._kept.clear()

    def __call__(self, text: str) -> TextEmbeddings:
        """
        Embed a text.

        Raises:
            UsageError: it is not Unicode.
            ModelError: it has a token that the text encoder does not know.
        """
        found = self._kept.pop(text, None) or self._embedded(text)
        if self._most:
            self._kept[text] = found  # the last that was asked for
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def _embedded(self, text: str) -> TextEmbeddings:
        contexts, cuts = [], []
        pooled = None
        for encoder, tokenizer in self._pairs:
            most = encoder.config.max_position_embeddings
            ids, cut = tokenizer.encode(text, min(most, tokenizer.longest or most))
            if max(ids) >= encoder.config.vocab_size:
                msg = f"the tokenizer knows token {max(ids)}, and the text encoder has "
                msg += f"{encoder.config.vocab_size}: they are of two models, or a word was added "
                msg += "to one alone; get the model again, whole"
                raise ModelError(msg)
            cuts.append(cut)
            features = encoder(Tensor.from_numpy(np.array([ids], np.int64), self._device))
            contexts.append(features.penultimate if self._pooled else features.last)
            if self._pooled:
                pooled = features.pooled  # the last encoder's counts
        context = contexts[0] if len(contexts) == 1 else ops.cat(contexts, 2)
        return TextEmbeddings(context, pooled, max(cuts, key=len))


def conditions(
    texts: Sequence[TextEmbeddings], width: int, height: int, guidance: Tensor | None = None
) -> tuple[Tensor, AddedConditions]:
    """
    The texts as the UNet takes them.

    Args:
        texts: that of each row: the negative prompts of all images, if any, and their prompts.
        width: of the images in pixels.
        height: the same.
        guidance: the embedded scale of each row, for models that take one.

    Returns:
        context (texts, t, d), and what some UNets are told besides.
    """
    context = ops.cat([text.context for text in texts], 0)
    pooled = [text.pooled for text in texts if text.pooled is not None]
    if not pooled:
        return context, AddedConditions(guidance=guidance)
    # Original size, corner of the crop, target size: an image that was never cropped.
    sizes = np.array([[height, width, 0, 0, height, width]] * len(texts), np.float32)
    sizes_there = Tensor.from_numpy(sizes, context.device)
    return context, AddedConditions(ops.cat(pooled, 0), sizes_there, guidance)


def guidance_embedding(guidance: float, width: int, batch: int, device: Device) -> Tensor:
    """
    The guidance scale as sines and cosines (Meng et al. 2023), for models that take it so.

    Args:
        guidance: the scale.
        width: elements of the embedding (``time_cond_proj_dim``).
        batch: rows.
        device: where it goes.

    Returns:
        (batch, width), f32.
    """
    half = width // 2
    frequencies = np.exp(np.arange(half) * -(np.log(10_000.0) / (half - 1)))
    angles = (guidance - 1) * 1000.0 * frequencies
    row = np.concatenate([np.sin(angles), np.cos(angles), np.zeros(width % 2)])
    return Tensor.from_numpy(np.tile(row.astype(np.float32), (batch, 1)), device)


__all__ = ["TextEmbeddings", "TextEncoder", "conditions", "guidance_embedding"]
