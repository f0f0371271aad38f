"""The op matrix: what is declared, wired, passed and seen on hardware, without any hardware."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from propolis import DeviceProperties
from propolis import dtypes
from propolis.cli import main
from propolis.config import Config
from propolis.described import DescribedDevice
from propolis.errors import DeviceError
from propolis.ops import catalogue
from propolis_conformance.judge import Result
from propolis_conformance.keys import compact
from propolis_conformance.keys import keys
from propolis_conformance.matrix import collect
from propolis_conformance.matrix_page import markdown
from propolis_conformance.report import FORMAT
from propolis_conformance.report import JudgedDevice
from propolis_conformance.report import JudgedPlugin
from propolis_conformance.report import Report


ABSENT = """
from propolis import ProbeResult
class Provider:
    kind = "rocm"
    def describe(self):
        yield DeviceProperties("rocm", 0, "Old", arch="gfx906")
        yield DeviceProperties("rocm", 0, "New", arch="gfx1100")
    def enumerate(self):
        raise RuntimeError("there is no such hardware here")
    def open(self, index):
        raise RuntimeError("there is no such hardware here")
@hookimpl
def propolis_probe():
    return ProbeResult(False, "no card")
@hookimpl
def propolis_devices(config):
    yield Provider()
def add(out, a, b, /): ...
def qmatmul(out, x, w, /): ...
"""
OPS = """
@hookimpl
def propolis_ops(device):
    if device.kind == "rocm":
        yield OpImpl(op="add", fn=add, device="rocm", dtypes={dtypes.f32, dtypes.f16})
        yield OpImpl(op="add", fn=add, device="rocm", dtypes={dtypes.i32},
                     archs=frozenset({"gfx1100"}))
        yield OpImpl(op="add", fn=add, device="rocm", dtypes={dtypes.i64},
                     archs=frozenset({"gfx1250"}))
        yield OpImpl(op="qmatmul", fn=qmatmul, device="rocm",
                     dtypes={"x": {dtypes.f32, dtypes.f16}, "w": {dtypes.q4_0}})
"""


def report(*results, version="1.0", extra=(), quick=False):
    """A report of the plugin on a device."""
    return Report(
        format=FORMAT,
        propolis="0",
        date="2026-01-01",
        command="propolis conformance wrong --seed 0",
        ops=[],
        quick=quick,
        plugin=JudgedPlugin("wrong", "wrong-dist", version),
        device=JudgedDevice("rocm:0", "New", "gfx1100", dict(extra)),
        host={},
        libraries={},
        seconds=1.0,
        results=list(results),
    )


def column_of(**reports):
    """The plugin's column of the matrix."""
    found = collect(Config.load(), reports)
    return next(column for column in found.columns if column.plugin.name == "wrong")


def levels(**reports):
    """What is known of the dtypes of ``add``."""
    entries = column_of(**reports).entries
    return {e.key[0].name: e.level for e in entries.values() if e.spec.name == "add"}


def test_what_is_declared_and_wired_without_a_device(install):
    """An absent device's ops are listed, with the architectures where a worker reaches them."""
    install(ABSENT + OPS)
    entries = column_of().entries
    assert {
        "add[f32]": ["gfx906", "gfx1100"],
        "add[f16]": ["gfx906", "gfx1100"],
        "add[i32]": ["gfx1100"],
        "add[i64]": [],
        "qmatmul[f32,q4_0]": ["gfx906", "gfx1100"],
        "qmatmul[f16,q4_0]": ["gfx906", "gfx1100"],
    } == {name: entry.wired for name, entry in entries.items()}


def test_levels(install):
    """What a report adds: passed on a simulator, seen on hardware, failed in any of them."""
    install(ABSENT + OPS)
    bare = {"f32": "wired", "f16": "wired", "i32": "wired", "i64": "declared"}
    assert bare == levels()
    hard = report(Result("add[f32]"), Result("add[f16]", "failed"))
    soft = report(Result("add[i32]"), Result("add[f16]"), extra={"simulator": "hipsim"}.items())
    assert {**bare, "f32": "hardware", "f16": "failed"} == levels(a=hard)
    assert {**bare, "i32": "passed", "f16": "passed"} == levels(b=soft)
    both = {"f32": "hardware", "f16": "failed", "i32": "passed", "i64": "declared"}
    assert both == levels(a=hard, b=soft)
    assert both == levels(b=hard, a=soft)


@pytest.mark.parametrize("change", [{"version": "0.9"}, {"quick": True}])
def test_what_is_no_evidence(install, change):
    """Reports of other versions, and quick ones, prove nothing of what is installed."""
    install(ABSENT + OPS)
    assert levels()["f32"] == levels(a=report(Result("add[f32]"), **change))["f32"]


@pytest.mark.parametrize("status", ["declined", "no recipe", "no truth"])
def test_what_was_not_judged(install, status):
    """What a report could not judge is as if there were none."""
    install(ABSENT + OPS)
    assert levels()["f32"] == levels(a=report(Result("add[f32]", status)))["f32"]


def test_second_implementation_counts(install):
    """Of several implementations of one op and dtype, the worst is what counts."""
    install(ABSENT + OPS)
    for pair in (("passed", "failed"), ("failed", "passed")):
        results = (Result("add[f32]", pair[0]), Result("add[f32]#2", pair[1]))
        assert levels(a=report(*results))["f32"] == "failed"


def test_page(install):
    """The page has a column a plugin, dtypes by what is known of them, and the evidence."""
    install(ABSENT + OPS)
    page = markdown(collect(Config.load(), {"one": report(Result("add[f32]"))}), {"one": "r.md"})
    (row,) = [line for line in page.splitlines() if line.startswith("| `add` |")]
    assert row.endswith("| hardware: f32<br>wired: f16<br>wired on gfx1100: i32<br>declared: i64 |")
    (row,) = [line for line in page.splitlines() if line.startswith("| `qmatmul` |")]
    assert row.endswith("| wired: x: f32 f16; w: q4_0 |")
    assert "| [one](r.md) | wrong | 1.0 | New (gfx1100) | 1 passed | lacks 5 " in page
    assert "| wrong | 1.0 | rocm | gfx906 gfx1100 | 6 | 1 hardware, 4 wired, 1 declared |" in page
    assert "No report from a GPU" not in page


def test_page_without_reports(install):
    """Without a report from a GPU the page says so, a simulator's notwithstanding."""
    install(ABSENT + OPS)
    simulated = report(Result("add[f32]"), extra={"simulator": "hipsim"}.items())
    page = markdown(collect(Config.load(), {"one": simulated}), {})
    assert "No report from a GPU" in page
    assert "simulator: hipsim" in page


def test_plugin_that_breaks_a_rule(install):
    """What a worker would refuse is declared and not wired, with the reason."""
    install(ABSENT + OPS.replace("fn=qmatmul", "fn=add"))
    column = column_of()
    assert {"declared"} == {entry.level for entry in column.entries.values()}
    assert "qmatmul: its function takes (out, a, b, /)" in column.refusal


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ABSENT, "declares no ops"),
        (ABSENT.replace("def describe", "def other") + OPS, "does not describe"),
        (ABSENT.replace('"New", arch', '"New", index=1, arch') + OPS, "describing devices raised"),
        (
            ABSENT.replace('DeviceProperties("rocm", 0, "New"', 'DeviceProperties("x", 0, "New"'),
            "'x'",
        ),
        (ABSENT.replace('"rocm"', '"cuda"') + OPS.replace('kind == "rocm"', "kind"), "for rocm"),
        (
            ABSENT + OPS.replace("if device", "device.memory.allocate(8)\n    if device"),
            "described",
        ),
    ],
)
def test_plugins_without_a_column(install, source, reason):
    """A plugin of which nothing can be listed is named with the reason, and the others stay."""
    install(source)
    found = collect(Config.load(), {})
    told = {plugin.name: why for plugin, why in found.idle}
    assert reason in told["wrong"]
    assert [column.title for column in found.columns] == ["cpu_ref on cpu"]
    assert told["wrong"] in markdown(found, {})


def test_a_described_device_has_no_memory():
    """Whoever uses a described device's memory is told that it is not present."""
    device = DescribedDevice(DeviceProperties("rocm", 0, "New", arch="gfx1100"))
    with pytest.raises(DeviceError, match=r"rocm:0 \(gfx1100\) is described here and not present"):
        device.empty((2,), dtypes.f32)


@pytest.mark.parametrize("op", ["add", "qmatmul", "embedding", "cast"])
def test_compact_names_every_key_once(op):
    """The short form of all dtypes is their number; of one less, the names of the rest."""
    spec = catalogue()[op]
    every = keys(spec)
    assert f"all {len(every)}" == compact(spec, every)
    told = compact(spec, every[:-1])
    assert every[-1][-1].name not in told.split()
    assert every[-2][-1].name in told.split()


def call(*args):
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return exit_.value.code or 0


def test_command_writes_checks_and_says_what_is_stale(install, tmp_path, capsys):
    """-o writes what --check accepts until a report changes it; then it says what, and the cure."""
    install(ABSENT + OPS)
    page, reports = tmp_path / "page.md", tmp_path / "reports"
    reports.mkdir()
    with_reports = ("op-matrix", "--reports", str(reports))
    assert call(*with_reports, "-o", str(page)) == 0
    assert call(*with_reports, "--check", str(page)) == 0
    (reports / "a.json").write_text(report(Result("add[f32]")).json())
    capsys.readouterr()
    assert call(*with_reports, "--check", str(page)) == 1
    out = capsys.readouterr().out
    assert "+| [a](reports/a.json) | wrong | 1.0 |" in out
    assert f"{page}: stale; `propolis op-matrix --reports {reports} -o {page}` writes it" in out
    assert f"--- {page}" in out  # lines of it begin with -
    assert call(*with_reports, "-o", str(page)) == 0
    assert call("op-matrix", "--check", str(page)) == 1  # it would be written without reports
    assert f"{page}: it cites reports, and none are given" in capsys.readouterr().out
    page.write_bytes(b"\xff\xfe")
    capsys.readouterr()
    assert call(*with_reports, "--check", str(page)) == 2
    assert f"{page} cannot be read: 'utf-8' codec" in capsys.readouterr().err
    (reports / "a.json").write_text("{}")
    assert call(*with_reports, "--check", str(page)) == 2


def test_command_for_scripts(install, capsys):
    """--json gives each op at each key; without an option the page is printed."""
    install(ABSENT + OPS)
    assert call("op-matrix", "--json") == 0
    column = json.loads(capsys.readouterr().out)["columns"][1]
    assert column["plugin"] == "wrong"
    assert column["entries"]["add[i32]"] == {"level": "wired", "wired": ["gfx1100"], "reports": {}}
    assert call("op-matrix") == 0
    assert capsys.readouterr().out.startswith("# Op matrix")


@pytest.mark.parametrize("options", [("--json", "-o", "x"), ("--check", "x"), ("-o", "no/x")])
def test_command_misused(install, options, capsys, tmp_path, monkeypatch):
    """Options that exclude each other, and files that are not there, are errors that say so."""
    monkeypatch.chdir(tmp_path)
    assert call("op-matrix", *options) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_reports_survive_writing(tmp_path):
    """What was written is what is read."""
    from propolis_conformance.report import load

    before = report(Result("add[f32]", "failed", 3, check="values", message="off", truth=["f64"]))
    file = tmp_path / "r.json"
    file.write_text(before.json())
    assert before == load(file)
    assert before != replace(before, quick=True)
