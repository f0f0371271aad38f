"""
Stable Diffusion 1.5's UNet and VAE at full size on a GPU, f16: ours against diffusers on torch.

Runs on an NVIDIA GPU through the simulator's cuda flavour (``make hipsim-cuda``), in one process
with torch, call for call in turn, on the same random weights.  Ours takes the steps of a run, of
which all but the first are replays of one graph; diffusers' are taken as its users have them,
and as one CUDA graph with the channels last.  Prints which plugin served which op.

    ROCM_PATH=build/hipsim/cuda python benches/gpu_sd.py [--json FILE]
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
from diffusers import AutoencoderKL
from diffusers import UNet2DConditionModel
from sd_cpu import BATCH
from sd_cpu import CONFIG
from sd_cpu import SIZE
from sd_cpu import TIMESTEP
from sd_cpu import TOKENS
from sd_image_cpu import write_models

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.predicting import Guide
from propolis_workers.sd.predicting import Predictor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Device

    Call = Callable[[], np.ndarray]

OURS, THEIRS, GRAPH = "propolis", "diffusers", "diffusers, one graph"


def main() -> None:
    """Let them take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="rocm:0")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    runtime = Runtime.start(Config(fallback="error"))
    set_default_runtime(runtime)
    device = runtime.device(asked.device)
    rng = np.random.default_rng(1)
    latents = rng.standard_normal((BATCH, CONFIG["in_channels"], SIZE, SIZE), np.float32)
    context = rng.standard_normal((BATCH, TOKENS, CONFIG["cross_attention_dim"]), np.float32)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        calls = {OURS: _ours(Path(folder), device, latents, context)}
        for name, graph in ((THEIRS, False), (GRAPH, True)):
            calls[name] = _theirs(Path(folder), latents, context, graph=graph)
        for what, of in (("a UNet step", 0), ("decoding one image", 1)):
            figures[what] = _compare(what, {n: c[of] for n, c in calls.items()}, asked.rounds)
    print(*DispatchTable.of(device).placement.lines(), sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


def _compare(what: str, calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Milliseconds of each, medians of calls in turn; the results on the host included."""
    for _ in range(3):  # what the first calls compile, choose and capture
        outputs = {name: call() for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - started) * 1e3)
    found = {name: statistics.median(rows) for name, rows in taken.items()}
    apart = np.abs(outputs[OURS] - outputs[THEIRS]).max() / np.ptp(outputs[THEIRS])
    listed = ", ".join(f"{name} {ms:.2f}" for name, ms in found.items())
    ratios = ", ".join(f"{found[OURS] / found[name]:.2f}" for name in (THEIRS, GRAPH))
    print(f"{what}, ms: {listed}; ratios: {ratios}; outputs apart by {apart:.1e} of their range")
    return {**found, "apart": float(apart)}


def _ours(
    folder: Path, device: Device, latents: np.ndarray, context: np.ndarray
) -> tuple[Call, Call]:
    parts = load_components(folder, device, dtypes.f16)
    text, x = (Tensor.from_numpy(a.astype(np.float16), device) for a in (context, latents))
    predict = Predictor(parts.unet, Guide(text), 1000)
    one = x.narrow(0, 0, 1)

    def decode() -> np.ndarray:
        return ops.cast(parts.vae.decode(one), dtypes.f32).numpy()

    return lambda: predict(x, TIMESTEP).numpy(), decode


def _theirs(
    folder: Path, latents: np.ndarray, context: np.ndarray, *, graph: bool
) -> tuple[Call, Call]:
    layout = torch.channels_last if graph else torch.contiguous_format
    models: dict[str, Any] = {
        kind.__name__: kind.from_pretrained(folder / name, torch_dtype=torch.float16)
        .eval()
        .cuda()
        .to(memory_format=layout)
        for name, kind in (("unet", UNet2DConditionModel), ("vae", AutoencoderKL))
    }
    unet, vae = models.values()
    x, text = (torch.from_numpy(a).cuda().half() for a in (latents, context))
    at = torch.tensor(TIMESTEP, device="cuda")

    def step() -> torch.Tensor:
        return unet(x, at, text).sample.float()

    def decode() -> torch.Tensor:
        return vae.decode(x[:1]).sample.float()

    calls = [_graph(call) if graph else torch.inference_mode()(call) for call in (step, decode)]
    first, second = ((lambda call=call: call().cpu().numpy()) for call in calls)
    return first, second


@torch.inference_mode()
def _graph(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The call as one CUDA graph."""
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


if __name__ == "__main__":
    main()
