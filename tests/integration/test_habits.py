"""What runs before a commit, a push and a merge is what `make lint` and `.ci/run` run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml


ROOT = Path(__file__).parents[2]
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    text = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in lines.splitlines()]


def test_hooks_are_lint() -> None:
    """A commit is held to the first commands of `make lint`, a push to all; nothing is fetched."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repo,) = config["repos"]
    assert "local" == repo["repo"]
    by_stage: dict[str, list[str]] = {}
    for hook in repo["hooks"]:
        assert "system" == hook["language"]
        assert "additional_dependencies" not in hook
        (stage,) = hook.get("stages", config["default_stages"])
        by_stage.setdefault(stage, []).append(hook["entry"])
    assert list(by_stage) == config["default_install_hook_types"]
    assert ["make lint"] == by_stage["pre-push"]
    assert by_stage["pre-commit"] == recipe("lint")[:2]


def test_hosted_ci_is_ours() -> None:
    """What hosted CI runs is `.ci/run`, whole, and beside it only what lets git read the clone."""
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    checkout, *steps = job["steps"]
    assert checkout["uses"].startswith("actions/checkout@")
    trust = 'git config --global --add safe.directory "$GITHUB_WORKSPACE"'
    assert [{"run": trust}, {"run": "bash .ci/run"}] == steps
    assert (ROOT / ".ci/run").read_text().startswith("#!/usr/bin/env bash\n")


def test_hosted_ci_may_do_nothing() -> None:
    """It may read the code; it has no secrets, keeps no token, and takes actions by commit."""
    workflow = yaml.safe_load(WORKFLOW)
    assert {"contents": "read"} == workflow["permissions"]
    assert {"push", "pull_request"} == set(workflow[True])  # YAML reads `on` as true
    assert "secrets" not in WORKFLOW
    (job,) = workflow["jobs"].values()
    assert "permissions" not in job
    assert job["steps"][0]["with"] == {"persist-credentials": False}
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one) for one in used), used


def test_pythons_agree() -> None:
    """The Pythons that CI runs are the classifiers', from the one that every project requires."""
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    pythons = job["strategy"]["matrix"]["python"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    python = "Programming Language :: Python :: "
    named = [name.removeprefix(python) for name in settings["project"]["classifiers"]]
    assert pythons == [name for name in named if re.fullmatch(r"3\.\d+", name)]
    assert [f"3.{n}" for n in range(11, 11 + len(pythons))] == pythons
    assert pythons[0] == settings["tool"]["mypy"]["python_version"]
    assert f"py{pythons[0].replace('.', '')}" == settings["tool"]["ruff"]["target-version"]
    projects = [ROOT, *(ROOT / name for name in ("core", "workers")), *ROOT.glob("[pm]*s/*")]
    for file in (project / "pyproject.toml" for project in projects):
        if file.exists():
            required = tomllib.loads(file.read_text())["project"]["requires-python"]
            assert f">={pythons[0]}" == required, file
