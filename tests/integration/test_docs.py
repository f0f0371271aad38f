"""Every example in the docs runs, and prints what the docs say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from console import prints_as_shown

from propolis.config import Config


ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# One shell from its first line to its last: tests/downstream runs it in a fresh environment.
TUTORIAL = ROOT / "docs/plugins/tutorial.md"
# What a busy machine says besides: that libraries take some seconds to be tried.
LATE = re.compile(r'^\{.*"event": "rocm\.(?:trying|tried)".*\n', re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list:
    """All fenced blocks of one language, as test parameters named after page and position."""
    found = []
    for page in (page for page in PAGES if page != TUTORIAL):
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            if match[1] == kind:
                # Those that load the language model take seconds each.
                marks = [pytest.mark.model, pytest.mark.slow]
                if not re.search("llm|drift", match[2]):
                    # As does vetting the ROCm plugins anew.
                    marks = marks[1:] if page.name.startswith("rocm") else []
                name = f"{page.name}-{number}"
                found.append(pytest.param(match[2], id=name, marks=marks))
    return found


# What the pages show is a machine with the CPU reference alone, save the pages about other plugins,
# and the README, which shows that all are there and that there is no GPU.
PLAIN = """
import importlib_metadata
real = importlib_metadata.entry_points
importlib_metadata.entry_points = lambda **wanted: importlib_metadata.EntryPoints(
    entry
    for entry in real(**wanted)
    if not entry.dist.name.startswith(("propolis-rocm", "propolis-flash", "propolis-cpu-native"))
)
from propolis.cli import main
main()
"""
ALL = "from propolis.cli import main; main()"


@pytest.fixture(autouse=True)
def program(request: pytest.FixtureRequest, monkeypatch, tmp_path: Path) -> str:
    """What runs a command line: with what is installed here, or with the CPU reference alone."""
    monkeypatch.setenv("PROPOLIS_PROBE_TIMEOUT", "600")  # a busy machine is no slow plugin
    if re.search(r"README.md|cpu-native.md", request.node.name):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
        monkeypatch.delenv("PYTHONPATH")  # which hides the CPU kernels
        return ALL
    if not re.search(r"rocm[\w-]*\.md", request.node.name):
        return PLAIN
    monkeypatch.setenv("ROCM_PATH", str(request.getfixturevalue("hipsim")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MIOPEN_CUSTOM_CACHE_DIR", str(tmp_path / "miopen"))  # not in HOME
    return ALL


@pytest.mark.parametrize("source", blocks("python"))
def test_python_blocks_run(source: str) -> None:
    """A Python block of the docs runs to its end in a fresh namespace."""
    exec(compile(source, "<docs>", "exec"), {"__name__": "docs"})  # noqa: S102


@pytest.mark.parametrize("source", blocks("console"))
def test_console_blocks_print_what_they_show(source: str, program: str, tmp_path: Path) -> None:
    """Each `$ propolis ...` of the docs prints what follows it; `...` stands for anything."""
    commands = re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]
    assert commands
    for command in commands:
        line, _, shown = command.partition("\n")
        words = shlex.split(line)
        assert words[0] == "propolis"
        # JSON lines pass through a process of their own: which stream is first is not said.
        apart = "json" in words
        done = subprocess.run(
            [sys.executable, "-c", program, *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
            cwd=tmp_path,
            check=False,
        )
        printed = LATE.sub("", (done.stderr or "") + done.stdout)
        assert prints_as_shown(shown, printed), printed


@pytest.mark.parametrize("source", blocks("toml"))
def test_settings_files_are_valid(source: str, tmp_path: Path, monkeypatch) -> None:
    """A TOML block of the docs parses, and every setting in it is accepted."""
    if "[project" in source:
        assert tomllib.loads(source)
        return
    file = tmp_path / "config.toml"
    file.write_text(source)
    monkeypatch.setenv("PROPOLIS_CONFIG", str(file))
    config = Config.load()
    for name, value in tomllib.loads(source).items():
        assert value == getattr(config, name)


def test_links_lead_somewhere() -> None:
    """Every relative link of the docs names a file that exists."""
    others = {*ROOT.glob("*.md"), *ROOT.glob("plugins/*/*.md"), *ROOT.glob("models/*/*.md")}
    for page in {*PAGES, *others}:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_house_is_as_drawn() -> None:
    """Every path in the tree of the architecture page exists."""
    page = (ROOT / "docs/architecture.md").read_text()
    (tree,) = re.findall(r"^## 1\. .*\n\n((?: {4}.*\n)+)", page, re.MULTILINE)
    for line in tree.splitlines():
        first, *rest = line.split()
        assert (ROOT / first).exists(), first
        for path in (word.strip(";") for word in rest if "/" in word):
            assert (ROOT / first / path).exists() or (ROOT / path).exists(), f"{first}: {path}"
