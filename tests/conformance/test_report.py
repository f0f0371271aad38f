"""Reports: what is in them, what is not, and what is made of bad ones."""

from __future__ import annotations

import json
import platform
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from propolis import ops
from propolis.cli import main
from propolis.errors import UsageError
from propolis_conformance import report as report_module
from propolis_conformance.facts import without_places
from propolis_conformance.keys import keys
from propolis_conformance.keys import label_of
from propolis_conformance.pool import Request
from propolis_conformance.report import load
from propolis_conformance.report_page import markdown


BROKEN = """
def add(out, a, b, /):
    raise ValueError("no kernel in {folder}/secret/kernels.co on {host}")
def copy(out, x, /):
    out.array[...] = x.array
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add", fn=add, dtypes=F32)
        yield OpImpl(op="copy", fn=copy, dtypes={{dtypes.f32, dtypes.i32}})
"""


def call(*args):
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return exit_.value.code or 0


@pytest.fixture(scope="module")
def folder(install_for_all, tmp_path_factory):
    """The folder of the report of a plugin one of whose ops raises."""
    made = tmp_path_factory.mktemp("reports") / "new" / "out"
    install_for_all(BROKEN.format(folder=made, host="bees-desktop"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: "bees-desktop")
        assert call("conformance", "wrong", "--quick", f"--report={made}") == 1
    return made


@pytest.fixture
def report(folder):
    """That report, read back."""
    return load(folder / f"wrong-1.0-{platform.machine()}.json")


def test_both_files_are_written(report, folder):
    """--report makes the folder and names both files after plugin, version and architecture."""
    names = {file.name for file in folder.iterdir()}
    assert {f"{report.name}.json", f"{report.name}.md"} == names


def test_counts(report):
    """What is read back says what happened."""
    assert report.counts["failed"] == 1
    assert report.counts["passed"] == 2
    assert not report.complete


def test_no_place_is_named(folder):
    """Neither file names a folder or the host, though the plugin's error does."""
    for file in folder.iterdir():
        text = file.read_text()
        assert "kernels.co" in text
        assert "secret" not in text
        assert str(folder) not in text
        assert str(Path.home()) not in text
        assert "bees-desktop" not in text


@pytest.mark.parametrize(
    ("said", "clean"),
    [
        ("cannot open /opt/x/lib.so: gone", "cannot open .../lib.so: gone"),
        ("file:///data/a/b.co", "file://.../b.co"),
        (f"{Path.home()}/models/x.gguf", ".../x.gguf"),
        ("within 3/4 of 1/2, f32/f16", "within 3/4 of 1/2, f32/f16"),
        ("'/srv/a b/c'", "'.../a b/c'"),
    ],
)
def test_places_are_cut(said, clean):
    """Of a path only the last part stays; fractions and the like are no paths."""
    assert clean == without_places(said)


def test_page_says_dtypes_by_name(report):
    """Where all passed, too: the page of an old report stays true when an op takes more dtypes."""
    units = [label_of(ops.silu, key) for key in keys(ops.silu)]
    results = [replace(report.results[0], unit=unit, status="passed") for unit in units]
    page = markdown(replace(report, results=results))
    assert "\n| silu | f64 f32 f16 bf16 f8e4m3 f8e5m2 |  |" in page


def test_failures_come_before_what_passed(report):
    """The page begins with the outcome, then each failure and the command that repeats it."""
    page = markdown(report)
    order = ["# Conformance of wrong", "**2 of 3 op x dtype passed**", "## Failed (1)"]
    order += ["**add[f32]**: runs", "- smallest case: `", "- again: `propolis conformance wrong"]
    order += ["## Where", "| numpy |", "## Op by op", "| copy | f32 i32 |", "Slowest: "]
    places = [page.index(text) for text in order]
    assert sorted(places) == places


def test_failure_is_repeated_by_its_command(report, capsys):
    """The command that the report gives fails in the same way, on that one alone."""
    assert shlex.split(report.again("add[f32]#2"))[-2:] == ["--op", "add[f32]#2"]
    words = shlex.split(report.again("add[f32]"))
    capsys.readouterr()
    assert call(*words[1:]) == 1
    out = capsys.readouterr().out
    assert "failed: add[f32]: runs" in out
    assert "1 op x dtype: 1 failed" in out


def test_the_command_has_the_patience_of_the_run():
    """What hung after three seconds is not waited for a minute the next time."""
    asked = Request("wrong", timeout=3)
    assert "--timeout 3" in report_module._command(asked)
    assert "--timeout" not in report_module._command(Request("wrong"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda r: r.pop("results"), "results: Field required"),
        (lambda r: r.update(format=99), "has format 99; this version reads 1"),
        (lambda r: r["results"][0].update(cases="many"), "results.0.cases: Input should be"),
        (lambda r: r["device"].pop("arch"), "device.arch: Field required"),
    ],
)
def test_bad_report(report, tmp_path, change, complaint):
    """A report that is not as it should be is refused with the field that is wrong."""
    fields = json.loads(report.json())
    change(fields)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(UsageError, match=complaint):
        load(file)


def test_no_report(tmp_path):
    """A file that is absent, or no JSON, is refused by name."""
    file = tmp_path / "bad.json"
    with pytest.raises(UsageError, match=r"bad\.json cannot be read: No such file"):
        load(file)
    for text in ("{", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"bad\.json is not JSON"):
            load(file)


@pytest.mark.slow
def test_report_that_cannot_be_written(install, tmp_path, capsys):
    """A folder that is a file is an error that names it, not a traceback."""
    install(BROKEN.format(folder="", host=""))
    file = tmp_path / "file"
    file.write_text("")
    assert call("conformance", "wrong", "--quick", "--op=copy", f"--json={file}/x.json") == 2
    assert "x.json cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_progress_on_a_terminal(install, monkeypatch, capsys):
    """A terminal sees how far the run is, and the line is gone at its end; a file sees nothing."""
    install(BROKEN.format(folder="", host=""))
    assert call("conformance", "wrong", "--quick") == 1
    assert "judged" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert call("conformance", "wrong", "--quick") == 1
    err = capsys.readouterr().err
    assert "\r3 judged, 1 failed; now after " in err
    assert err.endswith("\r\033[K")
