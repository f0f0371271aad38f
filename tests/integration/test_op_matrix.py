"""The evidence that is committed, and the page made of it, are those of today's plugins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from propolis import __version__
from propolis.cli import main
from propolis.config import Config
from propolis.ops import catalogue
from propolis_conformance.keys import keys
from propolis_conformance.keys import label_of
from propolis_conformance.matrix import collect
from propolis_conformance.report import load
from propolis_conformance.report_page import markdown


ROOT = Path(__file__).parents[2]
REPORTS = sorted((ROOT / "docs/reports").glob("*.json"))
PLUGINS = sorted(p.parent.name for p in ROOT.glob("plugins/*/pyproject.toml"))
EXAMPLE = f"cpu_ref-{__version__}-x86_64"
CURE = "`make conformance-report` writes it anew"


def test_example_is_of_this_version():
    """The CPU reference's report is of the current version, complete, and nothing failed."""
    report = load(ROOT / f"docs/reports/{EXAMPLE}.json")
    assert __version__ == report.propolis
    assert (report.plugin.plugin, report.plugin.version) == ("cpu_ref", __version__)
    assert report.complete
    assert {"passed": len(report.results)} == {k: n for k, n in report.counts.items() if n}


def test_example_judges_all_that_is_declared():
    """The CPU reference's report has every op and dtype that it declares today, and no others."""
    report = load(ROOT / f"docs/reports/{EXAMPLE}.json")
    (column,) = [
        c
        for c in collect(Config.load(), {}).columns
        if (c.plugin.name, c.kind) == ("cpu_ref", "cpu")
    ]
    judged = {result.unit for result in report.results}
    assert set(column.entries) <= judged, CURE
    # A full run judges combinations of dtypes besides.
    ops = {catalogue()[name.partition("[")[0]] for name in column.entries}
    assert judged <= {label_of(spec, key) for spec in ops for key in keys(spec, every=True)}, CURE
    assert all(column.archs == entry.wired for entry in column.entries.values())


def test_example_names_what_decides():
    """Hardware, system and the versions of all that computes are in it."""
    report = load(ROOT / f"docs/reports/{EXAMPLE}.json")
    assert report.device.name
    assert {"python", "system", "machine"} <= report.host.keys()
    ours = {"propolis-core", "propolis-cpu-ref"}
    assert dict.fromkeys(ours, __version__).items() <= report.libraries.items()
    assert {"numpy", "numpy's BLAS"} <= report.libraries.keys()


@pytest.mark.parametrize("file", REPORTS, ids=lambda file: file.stem)
def test_reports_are_read_and_name_no_place(file):
    """Every committed report has the format of today; neither it nor its page names a folder."""
    report = load(file)
    assert markdown(report) == file.with_suffix(".md").read_text(), CURE
    for text in (file.read_text(), file.with_suffix(".md").read_text()):
        assert re.search(r"(?<![\w.])/(?:[\w.+-]+/)+", text) is None


def test_page_is_current(monkeypatch, capsys):
    """docs/op-matrix.md is what the plugins of the workspace and the reports make."""
    monkeypatch.chdir(ROOT)
    words = ["--plugins", ",".join(PLUGINS), "op-matrix", "--reports", "docs/reports"]
    with pytest.raises(SystemExit) as exit_:
        main([*words, "--check", "docs/op-matrix.md"])
    assert not exit_.value.code, capsys.readouterr().out
