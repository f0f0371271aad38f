"""What runs before a commit, a push and a merge is what `make lint` and `.ci/run` run."""

from __future__ import annotations

import re
from pathlib import Path

import yaml


ROOT = Path(__file__).parents[2]


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
