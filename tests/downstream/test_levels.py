"""The wheel of the CPU kernels: every level of instructions in it that this machine has."""

from __future__ import annotations

from propolis_cpu_native._native import LEVEL


OF_THIS_CPU = """
from importlib.util import find_spec
from propolis_cpu_native._native import _features, levels
built = [name for name in levels() if find_spec(f"propolis_cpu_native._{name}")]
print(*(name for name in built if levels()[name] <= _features()))
"""

# How far products with rounded activations are from exact ones, at worst: NMSE.
ROUNDED = """
import numpy as np
from propolis import Config, Runtime, Tensor, dtypes, ops
from propolis_cpu_native.ops_quantized import FORMATS
devices = [Runtime.start(Config(numerics=n)).cpu for n in ("exact", "fast")]
rng = np.random.default_rng(3)
w, x = (rng.normal(0, 1, (n, 512)).astype(np.float32) for n in (40, 20))
x[:, 5] = 300
def product(dtype, device):
    weight = ops.quantize(Tensor.from_numpy(w, device), dtype)
    return ops.qmatmul(Tensor.from_numpy(x, device), weight).numpy().astype(np.float64)
found = ([product(dtype, device) for device in devices] for dtype in FORMATS)
print(max(((a - b) ** 2).sum() / (a**2).sum() for a, b in found))
"""


def test_each_level_conforms(fresh) -> None:
    """
    Every op passes the quick suite at each of them; CI's wheel has two.

    At the best one of this machine `make conformance` judges them; one with bf16 beside VNNI has
    every line of the level below it.
    """
    env = fresh()
    env.install("propolis[cpu]")
    names = env.run("python", "-c", OF_THIS_CPU).split()
    assert names
    below = names[2:] if names[0] == "x86_64_v4_bf16" else names[1:]
    for name in below or names:
        env.variables[LEVEL] = name
        said = env.run("propolis", "conformance", "cpu_native", "--quick", "--seconds", "240")
        assert " passed (" in said, name
        assert "failed" not in said, (name, said)
        assert float(env.run("python", "-c", ROUNDED)) <= 1e-6, name
    env.variables[LEVEL] = "x86_64_v9"
    assert "no such level" in env.run("propolis", "plugins", "--reprobe")
