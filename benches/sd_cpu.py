"""
Stable Diffusion 1.5's UNet at full size on the CPU: ours against diffusers on torch.

In f32, or with ``--dtype bf16`` in bf16, for which torch has the channels last, as its docs advise.

Both are loaded once, each in a process of its own, from one folder of random weights, and
take turns step by step: whatever else the machine does falls on both.  ``--ops`` measures
every op of a step alone instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.metrics import Metrics

THREADS = 2
BATCH = 2  # with guidance: one sample for the prompt, one for none
SIZE = 64  # of the latents of 512 x 512 pixels
TOKENS = 77
TIMESTEP = 500.0

# The published configuration (unet/config.json).
CONFIG: dict[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
    "layers_per_block": 2,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "norm_num_groups": 32,
    "norm_eps": 1e-5,
    "act_fn": "silu",
    "downsample_padding": 1,
    "mid_block_scale_factor": 1,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "center_input_sample": False,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="steps of each contender")
    parser.add_argument("--folder", type=Path, help="keep the weights there, or find them there")
    parser.add_argument("--ops", action="store_true", help="every op of a step, alone")
    parser.add_argument("--only", default="", help="with --ops: those with this in their name")
    parser.add_argument(
        "--dtype", choices=["f32", "bf16"], default="f32", help="of weights and activations"
    )
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("diffusers")):
        print("torch and diffusers are not installed: no peer (make oracles installs them)")
    elif asked.contender:
        _serve(asked.contender, asked.folder, asked.dtype)
    elif asked.ops:
        import torch
        from _sd_ops import recorded
        from _sd_ops import table

        torch.set_num_threads(THREADS)
        table(recorded(CONFIG, BATCH, SIZE, TOKENS), asked.rounds, asked.only)
    elif asked.folder:
        compare(asked.folder, asked.rounds, asked.dtype)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), asked.rounds, asked.dtype)


def compare(folder: Path, rounds: int, dtype: str) -> None:
    """Let both take turns; print seconds, memory, and what ours spent them on."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder)
    contenders = {name: Contender(name, folder, dtype) for name in ("propolis", "diffusers")}
    steps: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    first: dict[str, dict[str, Any]] = {}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            step = contender.ask("step")
            if number:
                steps[name].append(step)
            else:  # it touches the memory that later ones reuse
                first[name] = step
            print(f"step {number} {name:10} {step['wall']:7.2f} s, cpu {step['cpu']:7.2f} s")
    for contender in contenders.values():
        contender.ask("end")
    outputs = [np.load(folder / f"{name}.npy") for name in contenders]
    apart = np.abs(outputs[0] - outputs[1]).max() / np.ptp(outputs[1])
    print(f"\nlargest difference of the outputs, of their range: {apart:.1e}")
    print(f"{'':24} {'propolis':>9} {'diffusers':>9}  ratio")

    def line(what: str, figures: list[float]) -> None:
        print(f"{what:24} {figures[0]:9.2f} {figures[1]:9.2f} {figures[0] / figures[1]:6.2f}")

    for what, clock in (("s/step", "wall"), ("cpu s/step", "cpu")):
        taken = [[step[clock] for step in steps[name]] for name in contenders]
        line(f"{what}, best", [min(t) for t in taken])
        line(f"{what}, median", [statistics.median(t) for t in taken])
    line("load, s", [contender.loaded["wall"] for contender in contenders.values()])
    line("peak of loading, GB", [contender.loaded["peak_gb"] for contender in contenders.values()])
    peaks = [max(s["peak_gb"] for s in (first[name], *steps[name])) for name in contenders]
    line("peak of steps, GB", peaks)
    fastest = min(steps["propolis"], key=lambda step: step["wall"])
    print("\nthe fastest step of ours, by op:")
    for row in fastest["costs"]:
        share = row["seconds"] / fastest["wall"]
        print(f"  {row['op']:20} {row['calls']:5} calls {row['seconds']:8.3f} s {share:7.1%}")


class Contender:
    """A child process with a model, which steps when asked."""

    def __init__(self, name: str, folder: Path, dtype: str) -> None:
        # OPENBLAS_CORETYPE pins numpy's BLAS to another processor's kernels.
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--contender", name),
                *("--folder", str(folder.resolve()), "--dtype", dtype),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._requests: Any = process.stdin
        self._answers: Any = process.stdout
        self.loaded = self.ask("load")

    def ask(self, what: str) -> dict[str, Any]:
        """Say what to do and wait for the figures."""
        print(what, file=self._requests, flush=True)
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer


def write_model(folder: Path) -> None:
    """The full model with random weights, f16, in the layout of diffusers."""
    import torch
    from diffusers import UNet2DConditionModel
    from safetensors.numpy import save_file

    with torch.device("meta"):
        shapes = UNet2DConditionModel.from_config(CONFIG).state_dict()
    rng = np.random.default_rng(0)
    tensors = {}
    for name, meta in shapes.items():
        shape = tuple(meta.shape)
        if len(shape) == 1:
            norm = "norm" in name and name.endswith("weight")
            tensors[name] = np.full(shape, 1 if norm else 0, np.float16)
        else:
            deviation = math.prod(shape[1:]) ** -0.5
            values = rng.standard_normal(shape, np.float32) * np.float32(deviation)
            tensors[name] = values.astype(np.float16)
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))


def _serve(name: str, folder: Path, dtype: str) -> None:
    """Be a contender: read requests, print figures."""
    rng = np.random.default_rng(1)
    sample = rng.standard_normal((BATCH, CONFIG["in_channels"], SIZE, SIZE), np.float32)
    context = rng.standard_normal((BATCH, TOKENS, CONFIG["cross_attention_dim"]), np.float32)
    costs: Callable[[], Any]
    output = sample
    for request in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        match request.strip():
            case "load":
                step, costs = {"propolis": _propolis, "diffusers": _diffusers}[name](folder, dtype)
            case "step":
                output = step(sample, context)
            case _:
                np.save(folder / f"{name}.npy", output)
        figures = {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "peak_gb": _peak_gb(),
        }
        print(json.dumps({**figures, "costs": costs()}), flush=True)
        if request.strip() == "end":
            return


def _peak_gb() -> float:
    """The most memory that was resident since the last call, mapped files included."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")  # begins anew
    return int(peak.split()[1]) * 1024 / 1e9


def _propolis(folder: Path, dtype: str) -> tuple[Any, Any]:
    from propolis import Config
    from propolis import Runtime
    from propolis import Tensor
    from propolis import ops
    from propolis.dtypes import f32
    from propolis.dtypes import parse_dtype
    from propolis_workers.sd.config import UNetConfig
    from propolis_workers.sd.layers import Weights
    from propolis_workers.sd.unet import UNet2DCondition
    from propolis_workers.weights import SafetensorsFolder

    runtime = Runtime.start(Config(threads=THREADS, metrics=True))
    metrics = cast("Metrics", runtime.metrics)
    with SafetensorsFolder.open(folder) as source:
        config = UNetConfig.from_json(source.config, str(folder))
        model = UNet2DCondition(config, Weights(source, runtime.cpu, parse_dtype(dtype)))
    timestep = np.array([TIMESTEP], np.float32)

    def step(sample: np.ndarray, context: np.ndarray) -> np.ndarray:
        tensors = [Tensor.from_numpy(a, runtime.cpu) for a in (sample, timestep, context)]
        output = model(*tensors)
        return (output if output.dtype is f32 else ops.cast(output, f32)).numpy()

    def costs() -> list[dict[str, Any]]:
        """What was spent since the last call."""
        rows = metrics.rows({})
        metrics.costs.clear()
        return rows

    return step, costs


def _diffusers(folder: Path, dtype: str) -> tuple[Any, Any]:
    import torch
    from diffusers import UNet2DConditionModel

    torch.set_num_threads(THREADS)
    of = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = UNet2DConditionModel.from_pretrained(folder, torch_dtype=of).eval()
    if dtype == "bf16":
        model = model.to(memory_format=torch.channels_last)

    def step(sample: np.ndarray, context: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            tensors = [torch.from_numpy(a).to(of) for a in (sample, context)]
            output: np.ndarray = model(tensors[0], TIMESTEP, tensors[1]).sample.float().numpy()
            return output

    return step, list


if __name__ == "__main__":
    main()
