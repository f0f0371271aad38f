"""Checkpoints in MXFP4, as gpt-oss's are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from microscaled_model import MXFP4
from microscaled_model import write_microscaled
from safetensors.numpy import load_file
from safetensors.numpy import save_file
from tiny_families import IDS
from tiny_families import Truth

from propolis import default_runtime
from propolis import dtypes
from propolis.errors import ModelError
from propolis_workers.llm import session
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.microscaled import Microscaled
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.models.facts import facts_of
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from pathlib import Path


def logits(path: Path) -> np.ndarray:
    """Of the ids, by the checkpoint in a folder."""
    source = SafetensorsFolder.open(path)
    model = build(source, read_config(source), default_runtime().cpu)
    return Engine(model, len(IDS)).logits_of(IDS)


def test_logits(tmp_path):
    """They are those of the plain checkpoint with the numbers that the blocks stand for."""
    truth = Truth.read("gpt_oss")
    plain = logits(write_microscaled(tmp_path / "plain", truth, packed=False))
    packed = logits(write_microscaled(tmp_path / "packed", truth, packed=True))
    np.testing.assert_allclose(packed, plain, rtol=1e-5, atol=1e-5)


def test_memory(tmp_path, monkeypatch):
    """Experts are reckoned in blocks before they are read, and all else in f32."""
    truth = Truth.read("gpt_oss")
    experts = sum(
        values.size
        for name, values in truth.weights.items()
        if name.endswith(("gate_up_proj", "down_proj"))
    )
    needed = []
    device = default_runtime().cpu
    monkeypatch.setattr(device, "expect_room", lambda nbytes, *_: needed.append(nbytes))
    for packed in (False, True):
        path = write_microscaled(tmp_path / str(packed), truth, packed=packed)
        source = SafetensorsFolder.open(path)
        session._expect_room("it", source, read_config(source), device, 8)
    assert needed[0] - needed[2] == experts * 4 - dtypes.mxfp4.nbytes(experts)


def test_facts_of_what_cannot_be_read(tmp_path):
    """Where blocks and scales do not fit, what a folder says is shown, and why it does not run."""
    path = write_microscaled(tmp_path / "m", Truth.read("gpt_oss"))
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])
    save_file(tensors, path / "model.safetensors")
    facts = facts_of(path, default_runtime())
    assert facts.architecture == "gpt_oss"
    assert {"supported are u8" in (need.problem or "") for need in facts.needs} == {True}


def folder(path: Path, **tensors: np.ndarray) -> SafetensorsFolder:
    """A checkpoint of these tensors."""
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text("{}", encoding="utf-8")
    return SafetensorsFolder.open(path)


@pytest.mark.oracle
def test_any_bits_are_what_transformers_says(tmp_path):
    """All codes and scales, in every place of a block."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 5, 4, 16), np.uint8)
    scales = rng.integers(110, 140, (3, 5, 4), np.uint8)
    wanted = convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    ours = Microscaled(folder(tmp_path / "m", w_blocks=blocks, w_scales=scales, b=blocks[0]))
    assert (ours.tensors["w"].dtype, ours.tensors["w"].shape) == (dtypes.mxfp4, (3, 5, 128))
    assert sorted(ours.tensors) == ["b", "w"]
    numbers = gguf.quants.dequantize(ours.data("w").reshape(15, -1), MXFP4).reshape(3, 5, 128)
    assert (numbers == wanted.numpy().swapaxes(1, 2)).all()
    assert (ours.data("b") == blocks[0].reshape(-1)).all()


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [((2, 3, 15), (2, 3)), ((2, 3, 16), (2, 4)), ((6, 16), (2, 3))],
)
def test_shapes_that_do_not_fit(tmp_path, blocks, scales):
    """The error names both tensors."""
    source = folder(
        tmp_path / "m", w_blocks=np.zeros(blocks, np.uint8), w_scales=np.zeros(scales, np.uint8)
    )
    with pytest.raises(ModelError, match=r"tensor w_blocks is u8 of .* and w_scales u8 of"):
        Microscaled(source)
