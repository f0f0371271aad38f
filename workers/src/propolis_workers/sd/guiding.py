"""What the UNet is told at every step, of one who asks for images or of several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis_workers.sd.predicting import Guide
from propolis_workers.sd.text import conditions
from propolis_workers.sd.text import guidance_embedding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis import Device
    from propolis_workers.sd.config import UNetConfig
    from propolis_workers.sd.params import GenerateParams
    from propolis_workers.sd.text import TextEmbeddings
    from propolis_workers.sd.text import TextEncoder


def guide_of(
    each: Sequence[GenerateParams],
    texts: TextEncoder,
    config: UNetConfig,
    *,
    zeros: bool,
    device: Device,
) -> tuple[Guide, list[dict[str, str]]]:
    """
    Encode what is asked for.

    Args:
        each: alike, with nothing left open.
        texts: what encodes.
        config: of the UNet.
        zeros: whether no negative prompt means zeros, not an empty text.
        device: where the UNet is.

    Returns:
        What the UNet is told, and what of each one's texts was cut.
    """
    first = each[0]
    embedded = config.time_cond_proj_dim
    guided = first.guidance > 1 and not embedded
    cuts: list[dict[str, str]] = []
    negatives: list[TextEmbeddings] = []
    prompts: list[TextEmbeddings] = []
    for one in each:
        prompt = texts(one.prompt)
        cut = {"prompt": prompt.cut}
        prompts += [prompt] * one.batch
        if guided:
            empty = one.negative is None and zeros
            negative = prompt.zeroed() if empty else texts(one.negative or "")
            negatives += [negative] * one.batch
            cut["negative"] = negative.cut
        cuts.append({name: text for name, text in cut.items() if text})
    scale = None
    if embedded:
        scale = guidance_embedding(first.guidance, embedded, len(prompts), device)
    width, height = first.width or 0, first.height or 0
    context, added = conditions([*negatives, *prompts], width, height, scale)
    return Guide(context, added, first.guidance if guided else 1.0), cuts


__all__ = ["guide_of"]
