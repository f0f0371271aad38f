"""A stranger's plugin, installed beside core, its suite and the CPU reference alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from propolis import __version__


MODEL_OPS = """
import numpy as np
import propolis
from propolis import Runtime, Tensor, ops

cpu = Runtime.start().cpu
rng = np.random.default_rng(0)
draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
x, weight = draw(3, 8), draw(8, 8)
gate = ops.linear(Tensor.from_numpy(x, cpu), Tensor.from_numpy(weight, cpu))
out = ops.add(Tensor.from_numpy(x, cpu), ops.silu_mul(gate, gate))
g = x.astype(np.float64) @ weight.T
np.testing.assert_allclose(out.numpy(), x + g * g / (1 + np.exp(-g)), rtol=1e-4, atol=1e-5)
print(propolis.__file__)
print("add by", *cpu.table.placement.as_dict()["ops"]["add"])
print(*cpu.table.placement.lines(), sep="\\n")
"""


@pytest.fixture(scope="module")
def env(fresh):
    """The environment with the plugin's wheel, which the installed command scaffolded."""
    made = fresh()
    made.install("propolis-core", "propolis-conformance", "propolis-cpu-ref", "pytest")
    made.run("propolis", "new-plugin", "hive-add")
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "."]
    # By the interpreter that has a build backend; the environment has none.
    made.run(sys.executable, *wheel, "./hive-add")
    made.install(made.folder / "hive_add-0.1.0-py3-none-any.whl")
    return made


def test_only_these_are_installed(env) -> None:
    """Neither workers nor the meta-distribution are there: nobody can be leaning on them."""
    ours = {name for name in env.distributions() if "propolis" in name or "hive" in name}
    parts = {"propolis-core", "propolis-conformance", "propolis-cpu-ref"}
    assert parts | {"hive-add"} == ours


def test_discovery(env) -> None:
    """The plugin is found, vetted and loaded, beside the reference."""
    listed = json.loads(env.run("propolis", "plugins", "--json"))
    found = {p["name"]: (p["distribution"], p["status"]) for p in listed}
    assert {
        "hive_add": ("hive-add", "loaded"),
        "cpu_ref": ("propolis-cpu-ref", "loaded"),
    } == found
    env.run("propolis", "doctor")


def test_explain(env) -> None:
    """It wins the op it came for, and the reference stands by."""
    explained = env.run("propolis", "explain", "add", "--dtype", "f32")
    assert "winner: hive_add (hive-add 0.1.0)" in explained
    assert f"standby: cpu_ref (propolis-cpu-ref {__version__})" in explained


def test_conformance(env) -> None:
    """It passes the suite in full, and its report names it."""
    said = env.run("propolis", "conformance", "hive_add", "--json", "report.json")
    assert "hive_add (hive-add 0.1.0) on cpu" in said
    report = json.loads((env.folder / "report.json").read_text())
    assert ["add[f32]"] == [r["unit"] for r in report["results"] if r["status"] == "passed"]
    assert {"plugin": "hive_add", "distribution": "hive-add", "version": "0.1.0"} == report[
        "plugin"
    ]


def test_its_own_tests(env) -> None:
    """The tests that were scaffolded with it pass: the suite as pytest runs it among them."""
    said = env.run("python", "-m", "pytest", "-v", "-p", "no:cacheprovider", "hive-add")
    assert "test_conforms[add[f32]] PASSED" in said
    assert "2 passed" in said


FOREIGN = """
import sys
import pytest

@pytest.fixture(params=["kg", "m"])
def unit(request):
    return request.param

def test_of_its_own(unit):
    assert unit in ("kg", "m")
    assert ("propolis" in sys.modules) is {loaded}
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_a_foreign_project(env, loaded) -> None:
    """Its tests pass, whatever their arguments are called; pytest loads Propolis only if asked."""
    folder = env.folder / "foreign"
    folder.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_foreign.py").write_text(FOREIGN.format(loaded=loaded))
    asked = ["-p", "propolis_conformance.pytest_plugin"] if loaded else []
    said = env.run("python", "-m", "pytest", "-p", "no:cacheprovider", *asked, "foreign")
    assert "2 passed" in said


def test_model_ops(env) -> None:
    """A feed-forward block runs, its residual sum by the plugin, and the summary says so."""
    where, add, placement = env.run("python", "-c", MODEL_OPS).splitlines()
    assert Path(where).is_relative_to(env.folder)
    assert "add by hive_add (hive-add 0.1.0)" == add
    assert placement == (
        f"placement: 3 of 3 ops on cpu by cpu_ref (propolis-cpu-ref {__version__}), "
        "hive_add (hive-add 0.1.0)"
    )
