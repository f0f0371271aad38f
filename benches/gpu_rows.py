"""
From how many rows on it pays to dequantise weights before a product.

Times ``qmatmul`` in turn, over numbers of rows: of rocm_kernels under exact numerics, which
dequantises on the way; of rocm_kernels under fast ones, which multiplies one row in integers, and
rounds the weight's values to 16 bits for matrix instructions, on the way up to 64 rows, 128 or 256,
and before where they are more; and of rocm_blas, which has a vendor's library multiply values.
What ``MANY_ROWS`` of both plugins' ``ops_quantized`` says.

    python benches/gpu_rows.py [--device rocm:0] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from _random_model import random_blocks

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_blas import ops_quantized


CONTENDERS = {
    "exact": ("rocm_kernels", "exact"),
    "rounded": ("rocm_kernels", "fast"),
    "rocm_blas": ("rocm_blas", "fast"),
}
ROWS = (1, 2, 4, 8, 9, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
ROUNDS = 5
REPEATS = 5


def measure(device_id: str) -> list[dict[str, object]]:
    """Microseconds of each contender, by dtype, shape and rows."""
    ops_quantized.MANY_ROWS.update(dict.fromkeys(ops_quantized.MANY_ROWS, 1))
    devices = {
        name: Runtime.start(
            Config(ops={"qmatmul": [plugin]}, numerics=numerics, fallback="error")
        ).device(device_id)
        for name, (plugin, numerics) in CONTENDERS.items()
    }
    rng = np.random.default_rng(1)
    found: list[dict[str, object]] = []
    for n, k in SHAPES:
        blocks = random_blocks(rng, n, k)
        weights = {
            name: Tensor.from_blocks(blocks.reshape(-1), dtypes.q4_k, (n, k), device)
            for name, device in devices.items()
        }
        for dtype in ("f32", "f16"):
            for rows in ROWS:
                x = rng.standard_normal((rows, k), np.float32)
                calls = {}
                for name, device in devices.items():
                    given = ops.cast(Tensor.from_numpy(x, device), getattr(dtypes, dtype))
                    out = device.empty((rows, n), given.dtype)
                    calls[name] = (out, given, weights[name])
                times = turns(calls)
                row = {"dtype": dtype, "n": n, "k": k, "rows": rows, **times}
                found.append(row)
                print(json.dumps(row), flush=True)
    return found


def turns(calls: dict[str, tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
    """Median microseconds of each contender's call, taken in turn."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, (out, x, w) in calls.items():
            start, stop = out.device.event(timing=True), out.device.event(timing=True)
            start.record()
            for _ in range(REPEATS):
                ops.qmatmul.into(out, x, w)
            stop.record()
            stop.synchronize()
            if turn:
                rounds[name].append(stop.elapsed(start) * 1e6 / REPEATS)
    return {name: round(statistics.median(times), 1) for name, times in rounds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="rocm:0")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measure(asked.device)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
