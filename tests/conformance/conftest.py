"""A folder of fake distributions, and the suite run on them."""

from __future__ import annotations

import gc
import importlib
import sys
import textwrap

import pytest
from fakes import cli
from fakes import cpu
from fakes import fakes
from fakes import private_settings
from fakes import python
from fakes import runtime
from fakes import site
from fakes import sources
from fakes import unvetted
from patience import patience

from propolis import runtime as runtimes
from propolis.runtime import set_default_runtime
from propolis_conformance import Request
from propolis_conformance import run


__all__ = [
    "cli",
    "cpu",
    "fakes",
    "private_settings",
    "python",
    "runtime",
    "site",
    "sources",
    "unvetted",
]

HEAD = """
import numpy as np
from propolis import DeviceProperties, OpImpl, PluginInfo, dtypes, hookimpl
F32 = {dtypes.f32}
@hookimpl
def propolis_plugin():
    return PluginInfo("wrong", api=1, description="wrong on purpose")
"""


def put(folder, source, patch):
    """Install a plugin ``wrong`` with this source into a folder that is then on the path."""
    info = folder / "wrong_dist-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (folder / "wrong_plugin.py").write_text(HEAD + textwrap.dedent(source))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-dist\nVersion: 1.0\n")
    (info / "RECORD").write_text("wrong_dist,,\n")
    (info / "entry_points.txt").write_text("[propolis.plugins]\nwrong = wrong_plugin\n")
    patch.delitem(sys.modules, "wrong_plugin", raising=False)  # an earlier test's
    patch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a plugin ``wrong`` with this source, for this process and its children."""
    return lambda source: put(tmp_path / "site", source, monkeypatch)


@pytest.fixture(scope="module")
def install_for_all(tmp_path_factory):
    """The same for what all tests of a file look at."""
    with pytest.MonkeyPatch.context() as patch:
        yield lambda source: put(tmp_path_factory.mktemp("site"), source, patch)


@pytest.fixture
def judged_here(install, unvetted, monkeypatch):
    """As ``judged``, in this process: for faults that do not end it."""

    def judge(source, *, quick=True):
        from propolis_conformance.judge import Plan
        from propolis_conformance.judge import judge
        from propolis_conformance.subject import Subject

        install(source)
        before = runtimes._default
        gc.collect()
        gc.freeze()  # cases collect garbage, and what other tests left is none of theirs
        try:
            subject = Subject("wrong", None, quick=quick)
            (unit,) = subject.units
            return judge(subject, unit, Plan(quick=quick), lambda _: None)
        finally:
            gc.unfreeze()
            sys.modules.pop("wrong_plugin", None)
            set_default_runtime(before)

    return judge


@pytest.fixture
def judged(install):
    """The one result of a plugin with this source."""

    def judge(source, *, timeout=60.0):
        install(source)
        (result,), _ = run(Request("wrong", quick=True, timeout=patience(timeout)), workers=1)
        return result

    return judge
