"""The wheel of the CPU kernels: every level of instructions that this machine has."""

from __future__ import annotations

from propolis_cpu_native._native import LEVEL


OF_THIS_CPU = """
from propolis_cpu_native._native import _features, levels
print(*(name for name, needed in levels().items() if needed <= _features()))
"""


def test_each_level_conforms(fresh) -> None:
    """
    The wheel has a module for each; every op passes the quick suite at each of them.

    At the best one of this machine `make conformance` judges them.
    """
    env = fresh()
    env.install("propolis[cpu]")
    names = env.run("python", "-c", OF_THIS_CPU).split()
    assert names
    for name in names[1:] or names:
        env.variables[LEVEL] = name
        said = env.run("propolis", "conformance", "cpu_native", "--quick", "--seconds", "240")
        assert " passed (" in said, name
        assert "failed" not in said, (name, said)
    env.variables[LEVEL] = "x86_64_v9"
    assert "no such level" in env.run("propolis", "plugins", "--reprobe")
