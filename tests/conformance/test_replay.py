from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from propolis import Tensor
from propolis import __version__
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.runtime import Runtime
from propolis_conformance.drift import SavedCall
from propolis_conformance.drift import load
from propolis_conformance.drift import replay
from propolis_conformance.drift import save


ADD = """
import os
import numpy as np
def add(out, a, b, /):
    {body}
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="add", fn=add, dtypes={{dtypes.f32}}, priority=100)
"""


@pytest.fixture
def adds(site):
    """Install a plugin ``other`` that adds in that way."""
    return lambda body: site.plugin("other", ADD.format(body=body))


@pytest.fixture
def call(cpu, tmp_path):
    """A saved call of add, with its right result and a strided input."""
    a = Tensor.from_numpy(np.float32([[1, 2, 3], [4, 5, 6]]), cpu).permute(1, 0)
    b = Tensor.from_numpy(np.ones((3, 2), np.float32), cpu)
    facts = {"device": "cpu", "by": "somebody", "layer": "7", "failure": "values: off"}
    path = tmp_path / "call.npz"
    save(SavedCall.given(ops.add, (a, b), {}).ended((ops.add(a, b),), **facts), path)
    return path


@pytest.fixture
def apart(call, monkeypatch):
    """A process of its own, which sees that plugin and none of those installed here."""
    monkeypatch.setenv("PROPOLIS_PLUGINS", "other")


def test_a_call_that_passes(cli, call):
    """What it was, who runs it now, how far off, and whether the bytes are those saved."""
    done = cli("replay", "--here", str(call))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "add (a=f32): saved from cpu, somebody, layer 7",
        "  failed then: values: off",
        "  a: 3x2 f32 strides (1, 3), 24 bytes",
        "  b: 3x2 f32 strides (2, 1), 24 bytes",
        f"ran on cpu by cpu_ref (propolis-cpu-ref {__version__})",
        "  result: 3x2 f32 strides (2, 1), 24 bytes",
        "  the same bytes as the result in the file",
        "  max abs 0, max rel 0, 0 ulp, NMSE 0, 0 wrong NaN or inf; truth: numpy f64",
        "  0 of the tolerance (exact, rounded once)",
        "passed",
    ]


def test_a_call_that_fails(cli, call, adds):
    """Exit code 1, the first wrong element, and --op chooses who runs."""
    adds("np.add(a.array, b.array, out=out.array); out.array[0, 1] += 1")
    done = cli("replay", "--here", str(call))
    assert done.code == 1
    assert "ran on cpu by other (fake-other 1.0)" in done.out
    assert "  1 bytes unlike the result in the file" in done.out
    assert "failed: values: 1 of 6 elements wrong; at (0, 1): 6.0, the truth is 5.0" in done.out
    assert cli("--op", "add=cpu_ref", "replay", "--here", str(call)).code == 0


def test_for_machines(cli, call, adds):
    """The same as JSON, which has no infinity."""
    adds("out.array[...] = np.inf")
    done = cli("replay", "--here", "--json", str(call))
    found = json.loads(done.out, parse_constant=pytest.fail)
    assert done.code == 1
    assert (found["op"], found["dtypes"], found["device"]) == ("add", ["f32"], "cpu")
    assert (found["nbytes"], found["passed"]) == (72, False)
    assert (found["errors"]["ratio"], found["errors"]["nonfinite"]) == (None, 6)
    assert found["saved"]["layer"] == "7"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('odd')", "runs: it raised RuntimeError: odd"),
        ("np.add(a.array, b.array, out=out.array)\n    a.array[0, 0] = 9", "inputs: a was written"),
        (
            "np.add(a.array[:2], b.array[:2], out=out.array[:2])",
            "written: 8 bytes of output 0 keep what was there before",
        ),
    ],
    ids=["raises", "writes-inputs", "leaves-out"],
)
def test_other_faults(cli, call, adds, body, said):
    """What raises is a fault although others could do the call; so is what memory shows."""
    adds(body)
    done = cli("replay", "--here", str(call))
    assert done.code == 1
    assert f"failed: {said}" in done.out


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "os.write(2, b'odd state\\n'); os.abort()",
            "aborted: it killed the process (SIGABRT): odd",
        ),
        ("os._exit(7)", "aborted: it ended the process with exit code 7"),
        ("__import__('time').sleep(99)", "hung: it gave no sign of life for 0.5 s"),
    ],
    ids=["aborts", "exits", "hangs"],
)
@pytest.mark.usefixtures("apart")
def test_a_call_that_does_not_come_back(cli, call, adds, body, said):
    """It has failed: exit code 1, who was to run it, and what happened."""
    adds(body)
    done = cli("replay", str(call), "--timeout", "0.5")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("add (a=f32): saved from cpu")
    assert lines[-2] == "ran on cpu by other (fake-other 1.0), not to the end"
    assert lines[-1].startswith(f"failed: {said}")


@pytest.mark.usefixtures("apart")
def test_one_that_does_not_come_back_for_machines(cli, call, adds):
    """The same as JSON."""
    adds("os.kill(os.getpid(), 9)")
    found = json.loads(cli("replay", "--json", str(call)).out)
    assert (found["passed"], found["by"]) == (False, "other (fake-other 1.0)")
    assert found["problems"] == ["aborted: it killed the process (SIGKILL)"]
    assert (found["device"], found["errors"]) == ("cpu", None)


@pytest.mark.slow
@pytest.mark.usefixtures("apart")
def test_apart_it_is_as_here(cli, call, adds):
    """Who runs it, how far off it is, refusals and their exit codes are those of the process."""
    adds("np.add(a.array, b.array, out=out.array); out.array[0, 1] += 1")
    assert cli("replay", str(call)) == cli("replay", "--here", str(call))
    for more in (("--device", "toy"), ("--device", "cpu:7")):
        assert cli("replay", *more, str(call)) == cli("replay", "--here", *more, str(call))


@pytest.mark.usefixtures("apart")
def test_a_plugin_that_ends_the_process_when_it_loads(cli, call, site):
    """That is no verdict about the call."""
    site.plugin("other", "import os\n@hookimpl\ndef propolis_ops(device): os._exit(9)")
    done = cli("replay", str(call))
    assert done.code == 3
    assert "cannot be replayed: loading the plugins ended the process with exit code 9" in done.err


def test_a_bug_of_ours(cli, call, monkeypatch):
    """It is not the plugin's fault; --debug shows where."""
    monkeypatch.setenv("PROPOLIS_DEBUG", "1")
    from propolis_conformance.process import ChildProcess

    monkeypatch.setattr(ChildProcess, "receive", lambda *_: {"bug": "Traceback\nOddError: x"})
    done = cli("replay", str(call))
    assert done.code == 70
    assert "Traceback\nOddError: x" in done.err
    assert done.err.endswith(
        "error: RuntimeError: OddError: x (a bug in propolis: `propolis --debug ...` shows where)\n"
    )


@pytest.mark.usefixtures("apart")
def test_for_a_debugger(cli, call, adds):
    """With --here it is this process that runs the call."""
    adds(f"assert os.getpid() == {os.getpid()}; np.add(a.array, b.array, out=out.array)")
    assert cli("replay", "--here", str(call)).code == 0
    assert cli("replay", str(call)).code == 1


@pytest.mark.usefixtures("unvetted", "apart")
def test_what_a_call_prints(cli, call, adds):
    """It is on standard error, as are log lines; the JSON document is alone."""
    adds("print('hello'); os.write(1, b'native\\n'); np.add(a.array, b.array, out=out.array)")
    done = cli("replay", "--json", "--here", str(call))
    assert json.loads(done.out)["passed"]
    assert "hello" in done.err
    done = cli("replay", "--json", str(call))
    assert json.loads(done.out)["passed"]
    assert {"hello", "native"} <= {*done.err.splitlines()}


@pytest.mark.usefixtures("unvetted")
def test_from_quarantine_to_replay(cli, adds, tmp_path, monkeypatch):
    """A call at which an implementation raised is kept where the settings say, and fails again."""
    folder = tmp_path / "calls"
    monkeypatch.setenv("PROPOLIS_SAVE_FAILING_CALLS", str(folder))
    adds("raise RuntimeError('odd')")
    cpu = Runtime.start(Config.load()).cpu
    x = Tensor.from_numpy(np.float32([[1, 2], [3, 4]]), cpu)
    ops.add(x, x.permute(1, 0))
    ops.add(x, x)  # quarantined by now
    (path,) = folder.iterdir()
    assert path.name == "add-other.npz"
    found = load(path)
    assert found.facts["failure"] == "raised RuntimeError: odd"
    assert (found.facts["plugin"], found.facts["version"]) == ("other", "1.0")
    assert found.tensors["b"].strides == (1, 2)
    assert "quarantined" in cli("explain", "add").out
    done = cli("replay", "--here", str(path))
    assert done.code == 1
    assert "failed: runs: it raised RuntimeError: odd" in done.out
    assert "quarantined" in cli("explain", "add").out  # a replay lets nobody back


@pytest.mark.usefixtures("unvetted")
def test_nothing_is_kept_unless_asked(adds, tmp_path):
    """Calls may hold what users say."""
    adds("raise RuntimeError('odd')")
    cpu = Runtime.start(Config.load()).cpu
    x = Tensor.from_numpy(np.float32([1]), cpu)
    assert ops.add(x, x).numpy().item() == 2
    assert list(tmp_path.rglob("*.npz")) == []
    assert cpu.table._handlers == ()


@pytest.mark.usefixtures("unvetted")
def test_a_folder_that_cannot_be_written(adds, tmp_path, capsys):
    """The call succeeds, and the log says what was not kept."""
    adds("raise RuntimeError('odd')")
    (tmp_path / "file").write_text("")
    cpu = Runtime.start(Config.load(save_failing_calls=tmp_path / "file")).cpu
    x = Tensor.from_numpy(np.float32([1]), cpu)
    assert ops.add(x, x).numpy().item() == 2
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [e["event"] for e in events] == ["call.not_saved", "op.quarantined"]
    assert "cannot be written" in events[0]["reason"]


def test_a_call_of_another_device(cli, cpu, tmp_path):
    """Where this machine has not the device, it runs on the one of the settings, and says so."""
    x = Tensor.from_numpy(np.float32([1, 2]), cpu)
    call = SavedCall.given(ops.neg, (x,), {}).ended((ops.neg(x),), device="rocm:3")
    save(call, tmp_path / "call.npz")
    done = cli("replay", "--here", str(tmp_path / "call.npz"))
    assert (done.code, done.err) == (0, "saved from rocm:3, which is not here: running on cpu\n")
    done = cli("replay", "--here", "--device", "rocm:3", str(tmp_path / "call.npz"))
    assert done.code == 2


def test_on_a_device_with_its_own_memory(fakes, runtime):
    """Strides, sharing and a destination that is an input are there again."""
    layouts = []

    def add(out, a, b, /):
        layouts.append((a.strides, out.storage is a.storage, a.storage is b.storage))
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

    device = fakes.device(fakes.impl(fn=add, in_place=True))
    x = Tensor.from_numpy(np.float32([[1, 2], [3, 4]]), device)
    ops.add.into(x, x, x)
    y = x.permute(1, 0)
    calls = [SavedCall.of(ops.add, (x, x, x), {}), SavedCall.given(ops.add, (y, y), {})]
    first = layouts.pop()
    for call in calls:
        assert replay(call, runtime, device).passed
    assert first == ((2, 1), True, True)
    assert layouts == [((2, 1), True, True)] * 2 + [((1, 2), False, True)] * 2


def test_prepared_weights_are_prepared_again(cpu, runtime):
    """The implementation finds what it made of the weight at load."""
    blocks = ops.quantize(Tensor.from_numpy(np.ones((4, 32), np.float32), cpu), dtypes.q8_0)
    key = ops.qmatmul.key(dtypes.f32, dtypes.q8_0)
    weight = cpu.table.prepare(ops.qmatmul, key, blocks)
    call = SavedCall.given(
        ops.qmatmul, (Tensor.from_numpy(np.ones((1, 32), np.float32)), weight), {}
    )
    assert call.prepared == ("w",)
    assert replay(call, runtime, cpu).passed
    (entry,) = cpu.table.placement.as_dict()["prepared_weights"]
    assert entry["count"] == 3  # at load, and once for each of the two runs


def test_arguments_that_the_op_refuses(cli, cpu, tmp_path):
    """A file whose shapes do not fit is the file's fault."""
    x, y = (Tensor.from_numpy(np.zeros(n, np.float32), cpu) for n in (2, 3))
    save(SavedCall.given(ops.add, (x, y), {}), tmp_path / "call.npz")
    done = cli("replay", "--here", str(tmp_path / "call.npz"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "add" in done.err


def test_no_such_file(cli, tmp_path):
    """One line, code 2."""
    for name, text in (("none", None), ("text", "hello")):
        path = tmp_path / name
        if text:
            path.write_text(text)
        done = cli("replay", "--here", str(path))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert str(path) in done.err


@pytest.mark.usefixtures("unvetted")
def test_who_runs_the_call_is_credited(adds, tmp_path):
    """And not who copies an input for it that the call writes over."""
    adds("np.add(a.array, b.array, out=out.array)")
    cpu = Runtime.start(Config.load()).cpu
    x = Tensor.from_numpy(np.float32([1, 2]), cpu)
    saved = replace(SavedCall.given(ops.add, (x, x), {}), into={0: "a"})
    runtime = Runtime.start(Config.load())
    assert replay(saved, runtime, runtime.cpu).by == "other (fake-other 1.0)"


def test_a_timeout_that_is_none(cli, call):
    """Is refused; NaN is in no range."""
    done = cli("replay", str(call), "--timeout", "nan")
    assert done.code == 2
    assert "nan is not supported: give a finite number" in done.err
