"""The suite itself: what it reports, expects, shrinks, and how it is started."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from patience import patience

from propolis.cli import main
from propolis.errors import UsageError
from propolis_conformance import Request
from propolis_conformance import Result
from propolis_conformance import expect
from propolis_conformance import run
from propolis_conformance.families import OPS
from propolis_conformance.report import build


SUBSET = ("add", "rms_norm", "matmul", "embedding", "kv_append", "dequantize")
WRONG = """
def add(out, a, b, /):
    out.array[...] = a.array + b.array
    if out.shape and out.shape[-1] > 1:
        out.array[..., 1] = 7
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add", fn=add, dtypes={dtypes.f32, dtypes.i32})
"""


def call(*args):
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as exit_:
        main(args)
    return exit_.value.code or 0


@pytest.mark.slow
def test_reference_passes():
    """The CPU reference conforms, and who said so is told."""
    results, facts = run(Request("cpu_ref", quick=True), SUBSET)
    assert {(r.unit, r.status) for r in results if r.status != "passed"} == set()
    assert {r.unit.partition("[")[0] for r in results} == set(SUBSET)
    assert next(r for r in results if r.unit == "matmul[f16]").truth == ["numpy f64"]
    assert facts["distribution"] == "propolis-cpu-ref"


@pytest.mark.slow
def test_shards_are_all(install):
    """Each unit is in one of them, whatever ops are chosen, and its command says which."""
    install(WRONG)
    whole = [r.unit for r in run(Request("wrong", quick=True))[0]]
    parts = [run(Request("wrong", quick=True, shard=(k, 2))) for k in (1, 2)]
    assert sorted(whole) == sorted(r.unit for results, _ in parts for r in results)
    assert all(results for results, _ in parts)
    for k, (results, facts) in enumerate(parts, 1):
        report = build(results, facts, Request("wrong", quick=True, shard=(k, 2)), 1.0)
        assert (report.shard, report.complete) == (f"{k}/2", False)
        assert f"--shard {k}/2" in report.again(results[0].unit)
        (alone,), _ = run(Request("wrong", quick=True, shard=(k, 2)), [results[0].unit])
        assert alone.unit == results[0].unit
    with pytest.raises(UsageError, match="shard 5/5 of wrong has none of its units"):
        run(Request("wrong", quick=True, shard=(5, 5)))


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/0", "a/b", "²/3", "-1/2", "1/9999999", ""])
def test_what_is_no_shard(capsys, shard):
    """Is refused, with what would be one."""
    assert call("conformance", "cpu_ref", "--shard", shard) == 2
    assert "give K/N with K from 1 to N" in capsys.readouterr().err


@pytest.mark.slow
def test_same_seed_same_cases(install):
    """A failure is repeated by its seed."""
    install(WRONG)
    first, _ = run(Request("wrong", seed=5, quick=True))
    again, _ = run(Request("wrong", seed=5, quick=True))
    assert [r.case for r in first] == [r.case for r in again]
    assert "seed=5" in first[0].case


def test_every_recipe_is_valid():
    """No set of attributes is one that the op refuses: it would be skipped in silence."""
    from propolis_conformance.cases import cases
    from propolis_conformance.checks import Bench
    from propolis_conformance.subject import Subject

    subject = Subject("cpu_ref", "cpu")
    # Of the first dtype: a row of blocks is not as wide as one element, so that some are none.
    for unit in {unit.spec.name: unit for unit in reversed(subject.units)}.values():
        for recipe in OPS[unit.spec.name].recipes:
            every = cases((recipe,), 0)
            for case, _ in zip(every, recipe.attributes, strict=False):
                Bench.set_up(subject, unit, case, subject.use(unit))


def test_no_recipe_is_reported(install, monkeypatch):
    """An op that the suite cannot draw arguments for is never a pass."""
    from propolis_conformance.judge import Plan
    from propolis_conformance.judge import judge
    from propolis_conformance.subject import Subject

    install(WRONG)
    monkeypatch.delitem(OPS, "add")
    subject = Subject("wrong", None)
    result = judge(subject, subject.units[0], Plan(), lambda _: None)
    assert result.status == "no recipe"


@pytest.mark.slow
def test_shrinks(install):
    """What is reported is the smallest case that still fails."""
    install(WRONG)
    (result, *_), _ = run(Request("wrong", quick=True))
    assert result.case.startswith("r=1 s=1 c=2 layout=contiguous values=normal"), result.case


def test_report(install, tmp_path, capsys):
    """JSON and Markdown say who, where, what, and the first failure."""
    install(WRONG)
    file, text = tmp_path / "r.json", tmp_path / "r.md"
    assert call("conformance", "wrong", "--quick", f"--json={file}", f"--markdown={text}") == 1
    report = json.loads(file.read_text())
    assert report["plugin"] == {
        "plugin": "wrong",
        "distribution": "wrong-dist",
        "version": "1.0",
    }
    assert report["counts"]["failed"] == 2
    assert report["device"]["id"] == "cpu"
    assert report["host"]["python"] == sys.version.split()[0]
    assert "numpy" in report["libraries"]
    page = text.read_text()
    assert "# Conformance of wrong (wrong-dist 1.0)" in page
    assert "**add[f32]**: values: 1 of 2 elements wrong" in page
    assert "2 op x dtype: 2 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_expected_failures(install, tmp_path):
    """A known failure is no failure; a known failure that passes is one."""
    install(WRONG)
    known = tmp_path / "known.toml"
    known.write_text('add = "column 1 is 7"')
    assert call("conformance", "wrong", "--quick", "--expect", str(known)) == 0
    known.write_text('"add[f32]" = "column 1 is 7"')
    assert call("conformance", "wrong", "--quick", "--expect", str(known)) == 1


def test_expectation_that_passes():
    """It is a failure that asks to be taken off the list."""
    passed = Result("add[f32]")
    failed = Result("add[f16]", "failed", check="values")
    found = expect.apply([passed, failed], {"add[f32]": "why"})
    assert [(r.status, r.check) for r in found] == [("failed", "expected"), ("failed", "values")]
    found = expect.apply([passed, failed], {"add": "why"})
    assert [r.status for r in found] == ["passed", "expected"]
    (found,) = expect.apply([passed], {"add": "why"})
    assert found.status == "failed"
    assert "take it out of the list" in found.message


def test_expectations_refused(tmp_path):
    """Names that were not judged, and entries without a reason."""
    with pytest.raises(UsageError, match="ad, which were not judged"):
        expect.apply([Result("add[f32]")], {"ad": "why"})
    file = tmp_path / "e.toml"
    file.write_text("add = 1")
    with pytest.raises(UsageError, match="it must be the reason"):
        expect.load(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nobody",), "no plugin 'nobody' is installed; there are: cpu_ref"),
        (("cpu_re",), "; did you mean cpu_ref?"),
        (("cpu_ref", "--op", "ad"), "cpu_ref does not implement ad here"),
        (("cpu_ref", "--device", "rocm:0"), "no device 'rocm:0'"),
        (("cpu_ref", "--expect", "/nowhere.toml"), "--expect /nowhere.toml: No such file"),
    ],
)
def test_usage(args, said, capsys):
    """What cannot be judged is exit code 2, with what there is."""
    assert call("conformance", *args) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_pytest_plugin(tmp_path):
    """One test an op and dtype, under pytest."""
    plugin = "propolis_conformance.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin]
    command += ["-c/dev/null", "--import-mode=importlib", "--pyargs", "propolis_conformance"]
    command += ["--propolis-plugin=cpu_ref", "-k", "silu_mul"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patience(120), cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ((), "--propolis-plugin NAME says which plugin to judge"),
        (("--propolis-plugin=absent",), "no plugin 'absent' is installed; there are: "),
    ],
)
def test_pytest_plugin_without_a_plugin(option, said, tmp_path):
    """An author reads one sentence, and none of our frames."""
    plugin = "propolis_conformance.pytest_plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", plugin]
    command += ["-c/dev/null", "--import-mode=importlib", "--pyargs", "propolis_conformance"]
    done = subprocess.run(
        [*command, *option],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
        cwd=tmp_path,
    )
    assert done.returncode not in (0, 1)
    assert said in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "pytest_plugin.py" not in done.stdout


DECLINING = """
def add(out, a, b, /):
    out.array[...] = a.array + b.array
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add", fn=add, dtypes=F32, supports=lambda a, b: "not today")
"""


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--strict",), 1)])
def test_strict(install, capsys, option, code):
    """What is declined throughout is told; where all must be judged it fails."""
    install(DECLINING + "        yield OpImpl(op='add', fn=add, dtypes={dtypes.i32})\n")
    assert call("conformance", "wrong", "--quick", *option) == code
    assert "declined: add[f32]: its supports() took no case" in capsys.readouterr().out


def test_nothing_judged(install, capsys):
    """A run that judged no case is no success, and says so."""
    install(DECLINING)
    assert call("conformance", "wrong", "--quick") == 1
    assert "no case was judged, so nothing is known" in capsys.readouterr().err


def test_what_no_call_comes_to_is_told(install, capsys):
    """An implementation that is for elsewhere is left out with the reason, as `explain` has it."""
    elsewhere = DECLINING.replace('supports=lambda a, b: "not today"', 'archs={"x86-64"}')
    install(elsewhere)
    assert call("conformance", "wrong", "--quick") == 1
    said = capsys.readouterr()
    assert "left out: add: built for x86-64; this device is " in said.out
    assert "see what is left out" in said.err


def test_the_time_that_is_left_bounds_an_op(install, capsys):
    """A slow op takes about what all may take, not many times that; its report says it was cut."""
    slow = DECLINING.replace('supports=lambda a, b: "not today"', "")
    install(slow.replace("    out.array", "    import time; time.sleep(0.3)\n    out.array", 1))
    started = time.monotonic()
    assert call("conformance", "wrong", "--quick", "--seconds", "3") == 0
    assert time.monotonic() - started < patience(30)  # all cases take more than that
    assert "1 not to the end, for want of time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--seed", "-1", "-1 is not in the range x>=0"),
        ("--timeout", "nan", "nan is not supported: give a finite number"),
        ("--seconds", "nan", "nan is not supported: give a finite number"),
        ("--seconds", "inf", "inf is not supported: give a finite number"),
        ("--scale", "nan", "nan is not supported: give a finite number"),
    ],
)
def test_numbers_that_are_none(capsys, option, value, said):
    """What no run can be judged by is refused, not a fault of the plugin's."""
    assert call("conformance", "cpu_ref", "--op", "silu", option, value) == 2
    assert said in capsys.readouterr().err


UNREACHABLE = """
def gather(out, x, ids, /, dim=-1):
    raise AssertionError
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="gather", fn=gather, dtypes=F32)
"""


def test_what_no_call_comes_to(install, capsys):
    """An implementation for dtypes that the op has not is an error, not left out."""
    install(UNREACHABLE)
    assert call("conformance", "wrong", "--quick") != 0
    said = capsys.readouterr().err
    assert "gather: no call comes to its OpImpl, which takes ids of f32; the op has" in said
    assert "dtypes={'ids': ...}" in said


DECOMPOSED = """
def linear(out, x, w, /, bias=None):
    raise AssertionError
def matmul(out, a, b, /):
    out.array[...] = a.array @ b.array
def add(out, a, b, /):
    out.array[...] = a.array + b.array
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        for fn in (matmul, add):
            yield OpImpl(op=fn.__name__, fn=fn, dtypes=F32)
        yield OpImpl(op="linear", fn=linear, dtypes=F32, supports=lambda x, w, bias=None: "no")
"""


@pytest.mark.slow
def test_a_decomposition_is_nobody_elses_work(install, capsys):
    """What is declined, and done by the op's parts instead, is not judged as the plugin's own."""
    install(DECOMPOSED)
    assert call("conformance", "wrong", "--quick", "--op", "linear", "--op", "add") == 0
    assert "declined: linear[f32]: its supports() took no case" in capsys.readouterr().out


def test_a_plugin_whose_devices_fail_is_told_as_that(install, capsys):
    """Not as one without implementations, for which another device could be chosen."""
    install("@hookimpl\ndef propolis_devices():\n    raise RuntimeError('no driver')\n")
    assert call("conformance", "wrong", "--quick") == 3
    err = capsys.readouterr().err
    assert "plugin wrong is rejected" in err
    assert "no driver" in err
    assert "--device" not in err
