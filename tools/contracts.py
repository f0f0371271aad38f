"""
Check who imports whom, among all distributions that are in the workspace; `make lint` runs it.

A distribution imports core, and those of ours that its pyproject.toml names::

    [tool.propolis]
    imports = ["propolis_rocm_hip"]

Contracts about its inside stand there too, as import-linter has them, in
``[[tool.importlinter.contracts]]``.  Type-checking imports count like others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

CORE = "propolis"


def contracts(projects: list[Path]) -> dict[str, Any]:
    """
    Import-linter's settings for distributions.

    Args:
        projects: their folders; packages lie in ``src``.
    """
    tools = {
        path.parent.name: tomllib.loads((project / "pyproject.toml").read_text()).get("tool", {})
        for project in projects
        for path in sorted(project.glob("src/*/__init__.py"))
    }
    return {
        "root_packages": sorted(tools),
        "contracts": [c for package in sorted(tools) for c in _of(package, tools)],
    }


def _of(package: str, tools: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    settings = tools[package]
    yield from settings.get("importlinter", {}).get("contracts", [])
    allowed = [] if package == CORE else [CORE, *settings.get("propolis", {}).get("imports", [])]
    forbidden = sorted(tools.keys() - {package, *allowed})
    if forbidden:
        yield {
            "name": f"{package} imports {', '.join(allowed) or 'nobody'}",
            "type": "forbidden",
            "source_modules": [package],
            "forbidden_modules": forbidden,
        }


def main() -> None:
    """Check the distributions in the folders that are named."""
    found = contracts([Path(name) for name in sys.argv[1:]])
    lines = ["[tool.importlinter]", f"root_packages = {json.dumps(found['root_packages'])}"]
    for contract in found["contracts"]:
        lines.append("[[tool.importlinter.contracts]]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in contract.items()]
    file = Path("build/contracts.toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"
    sys.exit(subprocess.run([command, "--config", file], check=False).returncode)


if __name__ == "__main__":
    main()
