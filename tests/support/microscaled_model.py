"""gpt-oss's tiny model as a checkpoint in MXFP4."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gguf
import numpy as np
from safetensors.numpy import save_file


if TYPE_CHECKING:
    from pathlib import Path

    from tiny_families import Truth

MXFP4 = gguf.GGMLQuantizationType.MXFP4


def microscaled_parts(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """GGUF's blocks (..., bytes) as a checkpoint's: neighbours in a byte, and scales."""
    each = blocks.reshape(*blocks.shape[:-1], -1, 17)
    numbers = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], -1)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, each[..., 0]


def write_microscaled(path: Path, truth: Truth, *, packed: bool = True) -> Path:
    """gpt-oss's tiny model with experts of 4 bits; or with the numbers that these stand for."""
    path.mkdir()
    held = {}
    for name, values in truth.weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            held[name] = values
            continue
        blocks = gguf.quants.quantize(np.ascontiguousarray(values.swapaxes(1, 2)), MXFP4)
        if packed:
            held[f"{name}_blocks"], held[f"{name}_scales"] = map(
                np.ascontiguousarray, microscaled_parts(blocks)
            )
        else:
            held[name] = np.ascontiguousarray(gguf.quants.dequantize(blocks, MXFP4).swapaxes(1, 2))
    save_file(held, path / "model.safetensors")
    config = truth.config
    if packed:
        config = config | {"quantization_config": {"quant_method": "mxfp4"}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
