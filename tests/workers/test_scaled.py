"""Checkpoints in f8e4m3 with a scale a block."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from tiny_families import IDS
from tiny_families import Truth
from tiny_families import write_folder

from propolis import default_runtime
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from pathlib import Path

NAMES = {"float32": "F32", "float8_e4m3fn": "F8_E4M3"}


def write_scaled(path: Path, truth: Truth, block: tuple[int, int] | None) -> dict[str, np.ndarray]:
    """A checkpoint as DeepSeek V3's: linear layers in f8; gives the numbers that it stands for."""
    random = np.random.RandomState(3)
    held: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    for name, values in truth.weights.items():
        if not name.endswith("proj.weight"):
            held[name] = meant[name] = values
            continue
        rows, columns = block or values.shape
        shape = -(-values.shape[0] // rows), -(-values.shape[1] // columns)
        scales = random.uniform(0.5, 2.0, shape if block else ()).astype(np.float32)
        wide = np.broadcast_to(scales, shape).repeat(rows, 0).repeat(columns, 1)
        wide = wide[: values.shape[0], : values.shape[1]]
        held[name] = (values / wide).astype(ml_dtypes.float8_e4m3fn)
        held[name + "_scale_inv"] = scales
        meant[name] = held[name].astype(np.float32) * wide
    path.mkdir()
    said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    said |= {"weight_block_size": list(block)} if block else {}
    config = truth.config | {"quantization_config": said}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header, at = {}, 0
    for name, array in held.items():
        end = at + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape)}
        header[name]["data_offsets"] = [at, end]
        at = end
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in held.values())
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return meant


def logits(path: Path) -> np.ndarray:
    """Of the ids, by the checkpoint in a folder."""
    source = SafetensorsFolder.open(path)
    model = build(source, read_config(source), default_runtime().cpu)
    return Engine(model, len(IDS)).logits_of(IDS)


@pytest.mark.parametrize("block", [(32, 32), (128, 128), (7, 48), None])
def test_logits(block, tmp_path):
    """They are those of the plain checkpoint with the numbers that f8 and scales stand for."""
    truth = Truth.read("llama")
    meant = write_scaled(tmp_path / "f8", truth, block)
    plain = logits(write_folder(tmp_path / "plain", truth, meant))
    np.testing.assert_allclose(logits(tmp_path / "f8"), plain, rtol=1e-5, atol=1e-5)


def test_scales_that_do_not_fit(tmp_path):
    """Scales of another shape are named, with what they were to be."""
    truth = Truth.read("llama")
    write_scaled(tmp_path / "f8", truth, (32, 32))
    path = tmp_path / "f8/config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"]["weight_block_size"] = [16, 16]
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r"_scale_inv has shape .*each block of 16 x 16"):
        logits(tmp_path / "f8")


def test_other_ways_to_scale(tmp_path):
    """Weights in f8e4m3 whose scales have another name are refused, not taken as they are."""
    truth = Truth.read("llama")
    write_scaled(tmp_path / "f8", truth, None)
    path = tmp_path / "f8/model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"weight_scale_inv", b"weight_scale_two"))
    with pytest.raises(UnsupportedModelError, match="is f8e4m3 and has no weight_scale_inv"):
        logits(tmp_path / "f8")
