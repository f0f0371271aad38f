"""
Stable Diffusion 1.5's UNet at full size on a GPU, f16: ours against diffusers on torch.

Runs on an NVIDIA GPU through the simulator's cuda flavour (``make hipsim-cuda``), in one process
with torch, step for step in turn, on the same random weights.  Prints which plugin served which op.

    ROCM_PATH=build/hipsim/cuda python benches/gpu_unet.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from sd_cpu import BATCH
from sd_cpu import CONFIG
from sd_cpu import SIZE
from sd_cpu import TIMESTEP
from sd_cpu import TOKENS
from sd_cpu import write_model

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.layers import Weights
from propolis_workers.sd.unet import UNet2DCondition
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Device


def main() -> None:
    """Let both take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="rocm:0")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    runtime = Runtime.start(Config(fallback="error", metrics=True))
    set_default_runtime(runtime)
    device = runtime.device(asked.device)
    rng = np.random.default_rng(1)
    sample = rng.standard_normal((BATCH, CONFIG["in_channels"], SIZE, SIZE), np.float32)
    context = rng.standard_normal((BATCH, TOKENS, CONFIG["cross_attention_dim"]), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        steps = {
            "propolis": _propolis(Path(folder), device, sample, context),
            "diffusers": _diffusers(Path(folder), sample, context),
        }
    outputs = {name: step() for name, step in steps.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    assert runtime.metrics is not None  # noqa: S101  (it was asked for)
    runtime.metrics.costs.clear()
    for _ in range(asked.rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            taken[name].append((time.perf_counter() - started) * 1e3)
    ours, theirs = (statistics.median(rows) for rows in taken.values())
    apart = np.abs(outputs["propolis"] - outputs["diffusers"]).max() / np.ptp(outputs["diffusers"])
    print(f"largest difference of the outputs, of their range: {apart:.1e}")
    print(f"a step of both samples, ms: {ours:.2f}, diffusers {theirs:.2f}: {ours / theirs:.2f}")
    for row in runtime.metrics.rows({}):
        print(f"  {row}")
    print(*DispatchTable.of(device).placement.lines(), sep="\n")
    if asked.json:
        figures = {"propolis_ms": ours, "diffusers_ms": theirs, "apart": float(apart)}
        asked.json.write_text(json.dumps(figures) + "\n")


def _propolis(
    folder: Path, device: Device, sample: np.ndarray, context: np.ndarray
) -> Callable[[], Any]:
    with SafetensorsFolder.open(folder) as source:
        config = UNetConfig.from_json(source.config, str(folder))
        model = UNet2DCondition(config, Weights(source, device, dtypes.f16))
    given = [Tensor.from_numpy(a.astype(np.float16), device) for a in (sample, context)]
    timestep = Tensor.from_numpy(np.array([TIMESTEP], np.float32), device)

    def step() -> Any:
        output = model(given[0], timestep, given[1])
        return ops.cast(output, dtypes.f32).numpy()

    return step


def _diffusers(folder: Path, sample: np.ndarray, context: np.ndarray) -> Callable[[], Any]:
    model = UNet2DConditionModel.from_pretrained(folder, torch_dtype=torch.float16).eval().cuda()
    given = [torch.from_numpy(a).cuda().half() for a in (sample, context)]

    def step() -> Any:
        with torch.inference_mode():
            return model(given[0], TIMESTEP, given[1]).sample.float().cpu().numpy()

    return step


if __name__ == "__main__":
    main()
