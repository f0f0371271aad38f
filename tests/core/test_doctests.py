from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import propolis
from propolis import hookspecs


SOURCES = [f for d in ("*", "plugins/*") for f in Path(__file__).parents[2].glob(f"{d}/src/*/")]
EXAMPLES = sorted(
    ".".join(file.relative_to(package.parent).with_suffix("").parts)
    for package in SOURCES
    for file in package.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, monkeypatch, tmp_path):
    """The examples in docstrings do what they show; ``...`` stands for anything."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name.removesuffix(".__init__"))
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_hook_has_an_example():
    """Authors read the hook's docstring first; it is attached to the public name."""
    hooks = [f for n, f in vars(hookspecs).items() if n.startswith("propolis_")]
    assert len(hooks) == 6
    assert [h.__name__ for h in hooks if ">>>" not in h.__doc__] == []
    assert propolis.hookimpl is hookspecs.hookimpl
