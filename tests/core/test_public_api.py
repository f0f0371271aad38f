from __future__ import annotations

import importlib
import json
import pkgutil

import pytest

import propolis


MODULES = [m.name for m in pkgutil.walk_packages(propolis.__path__, "propolis.")]


def test_all_is_sorted_complete_and_true():
    """Every name of __all__ exists, and every public class and function is in it."""
    assert propolis.__all__ == sorted(propolis.__all__)
    for name in propolis.__all__:
        assert getattr(propolis, name) is not None
    modules = {m.partition(".")[2].partition(".")[0] for m in MODULES}
    public = {n for n in vars(propolis) if not n.startswith(("_", "@"))} - modules
    public -= {"annotations", "TYPE_CHECKING", "Any"}  # "@...": what pytest puts into modules
    assert public <= set(propolis.__all__)


def test_star_import():
    """The lazy names come too."""
    namespace = {}
    exec("from propolis import *", namespace)  # noqa: S102
    assert set(propolis.__all__) <= namespace.keys()


def test_a_name_that_is_not_there():
    """As for any module."""
    with pytest.raises(AttributeError, match="module 'propolis' has no attribute 'tensor_'"):
        _ = propolis.tensor_


@pytest.mark.parametrize("name", [m for m in MODULES if not m.endswith("__main__")])
def test_every_module_imports_and_keeps_its_word(name):
    """__all__ names what exists, sorted; every module says what it is."""
    module = importlib.import_module(name)
    assert module.__doc__
    exported = getattr(module, "__all__", [])
    assert list(exported) == sorted(exported)
    assert [n for n in exported if not hasattr(module, n)] == []


def test_import_brings_no_settings_and_no_log(python):
    """``import propolis`` waits for neither pydantic nor structlog, nor does it find plugins."""
    done = python(
        """
        import json, sys
        import propolis
        before = sorted(sys.modules)
        propolis.Config
        print(json.dumps([before, sorted(sys.modules)]))
        """
    )
    before, after = json.loads(done.stdout)
    heavy = {"pydantic", "pydantic_settings", "structlog", "rich", "click", "propolis.runtime"}
    assert heavy.isdisjoint(before)
    assert "pydantic" in after


def test_help_loads_no_settings_and_no_table(python):
    """Completion and --help are asked often."""
    done = python(
        """
        import sys
        from propolis.cli import main
        try:
            main(["plugins", "--help"])
        except SystemExit as exc:
            print("loaded:", exc.code, [m for m in ("pydantic", "rich") if m in sys.modules])
        """
    )
    assert "loaded: 0 []" in done.stdout
