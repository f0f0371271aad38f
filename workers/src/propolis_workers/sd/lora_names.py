"""
What files of LoRAs call the layers of a model.

Every spelling is made from the model's own names, so that none has to be parsed: kohya's
joins words by underscores, which cannot be undone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

# SDXL's original code names the parts of a residual block so.
_RESNET: Final = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_ENDS: Final = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_out": "out.2",
}
_MIDDLE: Final = {"resnets.0": 0, "attentions.0": 1, "resnets.1": 2}
_TEXT_ATTENTION: Final = {
    "q_proj": "to_q",
    "k_proj": "to_k",
    "v_proj": "to_v",
    "out_proj": "to_out",
}
_KOHYA_TEXT: Final = {"text_encoder": ("lora_te_", "lora_te1_"), "text_encoder_2": ("lora_te2_",)}


def spellings(modules: Iterable[str]) -> dict[str, str]:
    """
    All names that files may have for a model's layers.

    Args:
        modules: the model's names: ``unet.``, ``text_encoder.`` or ``text_encoder_2.`` and
            the name in diffusers' and transformers' layout.

    Returns:
        a file's name -> the model's.
    """
    names = list(modules)
    unet = [name.removeprefix("unet.") for name in names if name.startswith("unet.")]
    down = [_count(unet, rf"down_blocks\.{i}\.resnets\.(\d+)\.") for i in range(len(unet))]
    down = down[: down.index(0)] if 0 in down else down
    found = {spelling: f"unet.{name}" for name in unet for spelling in _of_unet(name, down, unet)}
    for name in names:
        part, _, rest = name.partition(".")
        if part in _KOHYA_TEXT:
            found |= dict.fromkeys(_of_text(part, rest.removeprefix("text_model.")), name)
    return found


def _of_unet(name: str, down: list[int], all_names: list[str]) -> Iterator[str]:
    yield name
    yield f"unet.{name}"
    yield f"base_model.model.{name}"
    yield f"lora_unet_{_joined(name)}"
    attention, dot, last = name.rpartition(".to_")
    if dot:
        processor = f"{attention}.processor.to_{last.removesuffix('.0')}"
        yield processor
        yield f"unet.{processor}"
    original = _original(name, down, all_names)
    if original:
        yield f"lora_unet_{_joined(original)}"


def _of_text(part: str, name: str) -> Iterator[str]:
    for prefix in ("text_model.", ""):
        yield f"{part}.{prefix}{name}"
        head, _, last = name.rpartition(".")
        if last in _TEXT_ATTENTION:
            yield f"{part}.{prefix}{head}.{_TEXT_ATTENTION[last]}"
        for kohya in _KOHYA_TEXT[part]:
            yield f"{kohya}{_joined(prefix + name)}"


def _original(name: str, down: list[int], all_names: list[str]) -> str | None:
    """
    A layer's name in the code that SDXL was first published with.

    Its blocks are numbered through: a residual block with its attention is one, so is a
    downsampling; an upsampling is a further part of the block before it.

    Args:
        name: in diffusers' layout.
        down: residual blocks of each level, the finest first.
        all_names: of the UNet, which tell where there is attention.
    """
    if name in _ENDS:
        return _ENDS[name]
    match = re.fullmatch(r"mid_block\.(resnets\.[01]|attentions\.0)\.(.+)", name)
    if match:
        return f"middle_block.{_MIDDLE[match[1]]}.{_RESNET.get(match[2], match[2])}"
    match = re.fullmatch(r"(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)\.(.+)", name)
    if not match:
        return None
    way, level, kind, index = match[1], int(match[2]), match[3], int(match[4])
    rest = _RESNET.get(match[5], match[5])
    if way == "down":
        block = 1 + sum(n + 1 for n in down[:level])
        if kind == "downsamplers":
            return f"input_blocks.{block + down[level]}.0.op"
        return f"input_blocks.{block + index}.{int(kind == 'attentions')}.{rest}"
    block = sum(n + 1 for n in down[::-1][:level])
    if kind == "upsamplers":
        attends = any(other.startswith(f"up_blocks.{level}.attentions.") for other in all_names)
        return f"output_blocks.{block + down[::-1][level]}.{1 + attends}.conv"
    return f"output_blocks.{block + index}.{int(kind == 'attentions')}.{rest}"


def _count(names: list[str], pattern: str) -> int:
    return len({match[1] for name in names if (match := re.match(pattern, name))})


def _joined(name: str) -> str:
    return name.replace(".", "_")


__all__ = ["spellings"]
