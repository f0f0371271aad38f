"""The diffs of docs/extending.md apply, and the suite passes what comes of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import patience
from tiny_families import Truth
from tiny_families import network
from tiny_families import write_folder

from propolis_workers.llm.engine import Engine


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()
OP, KERNEL, ARCHITECTURE = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SOURCES = ("core", "conformance", "plugins/cpu_ref", "plugins/rocm_hip", "plugins/rocm_kernels")
SOURCES += ("workers",)


def applied(root: Path, diff: str) -> None:
    """Apply a diff whose hunks are found by the lines that they keep, each once in its file."""
    for part in re.split(r"^--- .*\n", diff, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        path = root / name.removeprefix("+++ b/").strip()
        text = path.read_text() if path.exists() else ""
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] != "+")
            after = "".join(line[1:] for line in lines if line[0] != "-")
            assert text.count(before) == 1 or not text, f"{name}: {before}"
            text = text.replace(before, after) if text else after
        path.write_text(text)


@pytest.fixture
def workspace(tmp_path) -> Path:
    """A copy of the sources, without code objects."""
    left_out = shutil.ignore_patterns("__pycache__", "code")
    for name in SOURCES:
        shutil.copytree(ROOT / name / "src", tmp_path / name / "src", ignore=left_out)
    return tmp_path


@pytest.fixture
def propolis(workspace):
    """Run a command line on the copy."""

    def run(*args: str, **variables: str) -> str:
        paths = [str(workspace / name / "src") for name in SOURCES]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROPOLIS_", "COVERAGE_"))}
        done = subprocess.run(
            [sys.executable, "-c", "from propolis.cli import main; main()", *args],
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join([*paths, os.environ["PYTHONPATH"]]),
                "XDG_CACHE_HOME": str(workspace / "cache"),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(300),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_an_op(workspace, propolis) -> None:
    """Three lines, and the suite passes the op in all of its dtypes."""
    applied(workspace, OP)
    said = propolis("conformance", "cpu_ref", "--quick", "--op", "softsign")
    assert "6 op x dtype: 6 passed" in said
    served = {op["op"]: op["served_by"] for op in json.loads(propolis("ops", "--json"))}
    assert list(served["softsign"]) == [next(iter(served["exp"]))]


@pytest.mark.slow
def test_a_kernel(workspace, propolis, hipsim) -> None:
    """Three lines more, and the simulated GPU runs it."""
    applied(workspace, OP)
    applied(workspace, KERNEL)
    simulated = {"ROCM_PATH": str(hipsim), "PROPOLIS_REQUIRE_ROCM": "1"}
    judge = ("conformance", "rocm_kernels", "--quick", "--op", "softsign", "--timeout", "300")
    assert "6 op x dtype: 6 passed" in propolis(*judge, **simulated)


LOGITS = """
import sys
from pathlib import Path
from propolis import default_runtime
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.models import build, read_config
from propolis_workers.weights import SafetensorsFolder
source = SafetensorsFolder.open(Path(sys.argv[1]))
config = read_config(source)
engine = Engine(build(source, config, default_runtime().cpu), 8)
print(config.architecture, engine.prefill([1, 2, 3]).tolist())
"""


@pytest.mark.slow
def test_an_architecture(workspace, tmp_path) -> None:
    """One file, and a checkpoint of that name gives the logits of the Llama that it is."""
    applied(workspace, ARCHITECTURE)
    truth = Truth.read("llama")
    shapes = {name.replace("lm_head", "head"): shape for name, shape in truth.shapes.items()}
    weights = {name.replace("lm_head", "head"): array for name, array in truth.weights.items()}
    config = truth.config | {"model_type": "cousin"}
    folder = write_folder(tmp_path / "m", Truth(config, shapes, truth.logits), weights)
    paths = [str(workspace / name / "src") for name in SOURCES]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROPOLIS_", "COVERAGE_"))}
    done = subprocess.run(
        [sys.executable, "-c", LOGITS, folder],
        env={**kept, "PYTHONPATH": os.pathsep.join([*paths, os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        check=False,
    )
    name, _, logits = done.stdout.partition(" ")
    assert name == "cousin", done.stderr
    expected = Engine(network("llama", "folder", tmp_path / "llama"), 8).prefill([1, 2, 3])
    assert expected.tolist() == json.loads(logits)


def test_a_plugin(tool, tmp_path, monkeypatch) -> None:
    """A new folder is found: make has it among its distributions, the contracts hold it to core."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for project in ("core", "plugins/hive"):
        package = "propolis" if project == "core" else "hive"
        (tmp_path / project / "src" / package).mkdir(parents=True)
        (tmp_path / project / "src" / package / "__init__.py").touch()
        (tmp_path / project / "pyproject.toml").touch()
    asked = ["make", "--eval", "print:;@echo $(DISTRIBUTIONS) $(PLUGINS)", "print"]
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(asked, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True)
    assert {"plugins/hive", "hive"} <= set(done.stdout.split())
    monkeypatch.chdir(tmp_path)
    found = tool("contracts").contracts([Path("core"), Path("plugins/hive")])
    assert found["root_packages"] == ["hive", "propolis"]
    assert [c["forbidden_modules"] for c in found["contracts"]] == [["hive"]]
    settings = tmp_path / "plugins/hive/pyproject.toml"
    settings.write_text(re.search(r"(?m)^    \[tool\.propolis\]\n.*$", PAGE)[0].replace("    ", ""))
    assert tomllib.loads(settings.read_text())["tool"]["propolis"]["imports"]
    names = [c["name"] for c in tool("contracts").contracts([Path("plugins/hive")])["contracts"]]
    assert names == []
