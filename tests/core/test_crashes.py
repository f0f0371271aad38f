from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import sys

import numpy as np
import pytest
from programs import NORM
from structlog.testing import capture_logs

from propolis import Device
from propolis import Tensor
from propolis import capture
from propolis import inflight
from propolis import ops
from propolis.config import Config
from propolis.doctor import examine
from propolis.plugins import crash_file
from propolis.runtime import Runtime


ABORTS = """
import os
def rms_norm(out, x, weight, /, eps=1e-5):
    os.abort()
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={dtypes.f32}, priority=100)
"""

GOOD = """
def rms_norm(out, x, weight, /, eps=1e-5):
    out.array[...] = 7
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={dtypes.f32}, priority=100)
"""


@pytest.fixture
def running():
    """The folder of this test's crash files."""
    folder = Config.load().cache_dir / crash_file.FOLDER
    folder.mkdir(parents=True)
    return folder


def frame():
    """The name of the frame that called the caller."""
    return sys._getframe(2).f_code.co_name


# -- a process that crashes ----------------------------------------------------


def test_an_op_that_aborts(site, python, cli):
    """The next start says who, for which dtypes and shapes, and does without; the stack is kept."""
    site.plugin("deadly", ABORTS)
    assert python(NORM).returncode == -6
    with capture_logs() as logs:
        cpu = Runtime.start(Config.load()).cpu
    (line,) = [line for line in logs if line["event"] == "op.crashed"]
    said = {name: line[name] for name in ("op", "dtypes", "plugin", "version", "reason")}
    assert said == {
        "op": "rms_norm",
        "dtypes": "f32",
        "plugin": "deadly",
        "version": "1.0",
        "reason": "ended the process (Aborted): out 2x8, x 2x8, weight 8",
    }
    with open(line["report"], encoding="utf-8") as report:  # noqa: PTH123
        stack = report.read()
    assert "fake_deadly.py" in stack
    assert "in rms_norm\n" in stack
    x, weight = (Tensor.from_numpy(np.ones(shape, np.float32), cpu) for shape in ((2, 8), 8))
    assert ops.rms_norm(x, weight).numpy() == pytest.approx(1, abs=1e-4)
    (entry,) = json.loads(cli("quarantine", "list", "--json").out)
    assert entry["reason"] == said["reason"]
    doctor = {f.name: f.result for f in examine(Config.load, import_plugins=False)}
    assert doctor["quarantine"].status == "warning"
    assert "rms_norm (f32) of deadly (fake-deadly 1.0): ended" in doctor["quarantine"].summary
    assert "let back: rms_norm (f32) of deadly" in cli("quarantine", "clear").out


def test_a_library_that_aborts_when_it_is_asked(site, python):
    """What a plugin is asked in `supports` may run native code too: it is left out likewise."""
    asked = "priority=100, supports=lambda *call, **attributes: os.abort()"
    site.plugin("deadly", ABORTS.replace("priority=100", asked))
    assert python(NORM).returncode == -6
    with capture_logs() as logs:
        cpu = Runtime.start(Config.load()).cpu
    (line,) = [line for line in logs if line["event"] == "op.crashed"]
    assert (line["op"], line["plugin"]) == ("rms_norm", "deadly")
    x, weight = (Tensor.from_numpy(np.ones(shape, np.float32), cpu) for shape in ((2, 8), 8))
    assert ops.rms_norm(x, weight).numpy() == pytest.approx(1, abs=1e-4)


def test_listing_says_it_before_any_start(site, python, cli):
    """`propolis quarantine list` knows of a crash that no start has seen yet."""
    site.plugin("deadly", ABORTS)
    python(NORM)
    assert "ended the process (Aborted): out 2x8" in cli("quarantine", "list").out


def test_a_process_that_ends_leaves_nothing(site, python, running):
    """While it lives it has a file; a forked one has its own, and what that leaves is removed."""
    site.plugin("good", GOOD)
    source = f"""
    {NORM.strip().replace(chr(10), chr(10) + "    ")}
    import os
    before = os.listdir({str(running)!r})
    pid = os.fork()
    if pid == 0:
        print(len(before), len(os.listdir({str(running)!r})), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    """
    done = python(source)
    assert (done.stdout.split(), done.stderr) == (["7.0", "1", "2"], "")
    assert len(list(running.iterdir())) == 1
    assert crash_file.collect(running.parent) == []
    assert list(running.iterdir()) == []


@pytest.mark.usefixtures("unvetted")
def test_the_reference_alone_has_no_file(runtime):
    """It has no native code of its own: nothing is opened for it."""
    x = Tensor.from_numpy(np.ones(2, np.float32), runtime.cpu)
    ops.add(x, x)
    assert not (runtime.config.cache_dir / crash_file.FOLDER).exists()


# -- opening the file ----------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """A process that has introduced nobody yet; gives what faulthandler was told to write to."""
    told = []
    monkeypatch.setattr(crash_file, "_running", None)
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    monkeypatch.setattr(faulthandler, "enable", told.append)
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    yield told
    if told:
        crash_file._running.close()
        os.close(told[-1])


def test_a_folder_that_cannot_be_written(fresh, tmp_path):
    """Nothing is recorded, and nothing breaks."""
    (tmp_path / "file").write_text("")
    for number in (1, 2):
        crash_file.introduce(tmp_path / "file", number, {})
    assert fresh == []
    assert crash_file.collect(tmp_path / "file") == []


def test_who_wants_the_stack_elsewhere_gets_it_there(fresh, tmp_path, monkeypatch):
    """Faulthandler that is on already (`python -X faulthandler`, pytest) stays as it is."""
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: True)
    crash_file.introduce(tmp_path, 1, {})
    assert fresh == []
    assert list(tmp_path.iterdir()) == []


def test_a_live_process_is_let_be(fresh, tmp_path):
    """Its file is locked, whatever the numbers of processes are by now."""
    crash_file.introduce(tmp_path, 1, {"op": "add"})
    os.write(fresh[0], b"Fatal Python error: Aborted\n")
    assert crash_file.collect(tmp_path) == []
    fcntl.flock(fresh[0], fcntl.LOCK_UN)
    (crash,) = crash_file.collect(tmp_path)
    assert crash.pid == os.getpid()
    assert crash_file.collect(tmp_path) == []


# -- reading it ----------------------------------------------------------------


def introduced(*numbers):
    """Lines that say what numbers mean."""
    lines = [json.dumps({"number": n, "what": {"op": f"op{n}"}}) for n in numbers]
    return "\n".join([*lines, ""])


def thread(head, *names):
    """A thread's stack, as faulthandler writes it."""
    lines = [f'  File "/site/x.py", line {i} in {name}' for i, name in enumerate(names)]
    return "\n".join([f"{head} 0x00007f0f36e67b80 (most recent call first):", *lines, "", ""])


CURRENT, OTHER = "Current thread", "Thread"
FATAL = "Fatal Python error: Segmentation fault\n\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The innermost call of the thread that got the signal, and no other thread's.
        (
            thread(OTHER, "add#1 out 3")
            + thread(CURRENT, "fn", "mul#2 out 2x3, a 3", "run", "add#1 out 4"),
            [("op2", "ended the process (Segmentation fault): out 2x3, a 3")],
        ),
        # Only a thread of a library: whatever was running may have been at fault.
        (
            thread(OTHER, "wait", "add#1 out 3") + thread(OTHER, "mul#2 out 4"),
            [
                ("op1", "was running when a thread that is not Python's ended the process"),
                ("op2", "was running when a thread that is not Python's ended the process"),
            ],
        ),
        # The device was waited for.
        (
            thread(CURRENT, "synchronize", "after mul#2 out 4", "_wait"),
            [("op2", "was launched last when a wait for the device ended the process")],
        ),
        (thread(CURRENT, "main"), []),
        (thread(CURRENT, "add#9 out 3"), []),  # introduced by nobody: the disk was full
        ("", []),
    ],
)
def test_what_was_in_flight(running, text, expected):
    """As frames' names say."""
    (running / "12-x.txt").write_text(introduced(1, 2) + '{"torn\n' + FATAL + text)
    (crash,) = crash_file.collect(running.parent)
    assert crash.pid == 12
    assert [ended.what["op"] for ended in crash.calls] == [op for op, _ in expected]
    for ended, (_, start) in zip(crash.calls, expected, strict=True):
        assert ended.how.startswith(start)
        assert ended.sure == start.startswith("ended")


def test_a_crash_outside_of_ops_is_said_too(running):
    """One line with the report; nobody is taken out."""
    (running / "12-x.txt").write_text(FATAL + thread(CURRENT, "main"))
    with capture_logs() as logs:
        quarantine = Runtime.start(Config.load()).quarantine
    (line,) = [line for line in logs if line["event"] == "process.crashed"]
    assert line["reason"] == "ended (Segmentation fault) in no plugin's op"
    assert line["report"] == str(running.parent / "crash.txt")
    assert quarantine.entries == {}


def test_what_another_version_wrote(running):
    """It is said as far as it is understood, and stops no start."""
    (running / "12-x.txt").write_text(introduced(1) + FATAL + thread(CURRENT, "add#1 out 3"))
    with capture_logs() as logs:
        assert Runtime.start(Config.load()).quarantine.entries == {}
    assert [line["event"] for line in logs if "crash" in line["event"]] == ["process.crashed"]


def test_what_killed_processes_leave_is_no_crash(running):
    """Their files go without a word; others' files stay."""
    (running / "12-x.txt").write_text(introduced(1))
    (running / "notes.txt").write_text("mine")
    assert crash_file.collect(running.parent) == []
    assert [path.name for path in running.iterdir()] == ["notes.txt"]


# -- names ---------------------------------------------------------------------


@pytest.fixture
def named(fakes):
    """A device whose add notes the name of its frame, and what was introduced."""
    seen, known = [], {}

    def build(**fields):
        def add(out, a, b, /):
            seen.append(frame())
            fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

        device = fakes.device(fakes.impl(fn=add, **fields), fakes.impl(), fakes.copy)
        device.table.quarantine.introduce = lambda number, entry: known.update({number: entry})
        return device

    return build, seen, known


@pytest.mark.parametrize("supports", [None, lambda *_: None], ids=["always", "asked"])
def test_frames_say_what_they_run(named, supports):
    """The implementation by its number, and the shapes of this call, not of the one before."""
    build, seen, known = named
    device = build(supports=supports)
    x, y = (Tensor.from_numpy(np.ones(shape, np.float32), device) for shape in ((2, 3), 3))
    for a, b in ((x, x), (x, x), (x, y), (y, y), (x, x)):
        ops.add(a, b)
    (number,) = known
    entry = known[number]
    assert (entry.op, entry.dtypes, entry.source.plugin) == ("add", ("f32",), "fake")
    assert seen == [
        f"add#{number} {shapes}"
        for shapes in (
            "out 2x3, a 2x3, b 2x3",
            "out 2x3, a 2x3, b 2x3",
            "out 2x3, a 2x3, b 3",
            "out 3, a 3, b 3",
            "out 2x3, a 2x3, b 2x3",
        )
    ]
    assert inflight.read(seen[2]) == inflight.Frame(
        number, waiting=False, shapes="out 2x3, a 2x3, b 3"
    )


def test_many_shapes_are_forgotten_again(named):
    """A sequence that grows keeps no function for each of its lengths, and its names are right."""
    build, seen, _ = named
    device = build()
    for length in range(1, 150):
        x = Tensor.from_numpy(np.ones(length, np.float32), device)
        ops.add(x, x)
    assert [name.split()[2] for name in seen] == [f"{length}," for length in range(1, 150)]


def test_a_captured_step_names_its_calls(named):
    """Each replayed call says which it is."""
    build, seen, _ = named
    device = build()
    x, y = (Tensor.from_numpy(np.ones(n, np.float32), device) for n in (2, 5))
    with capture(device) as graph:
        ops.add(x, x)
        ops.add(y, y)
    seen.clear()
    graph.replay()
    assert [inflight.read(name).shapes for name in seen] == ["out 2, a 2, b 2", "out 5, a 5, b 5"]


def test_one_launch_of_many_calls_is_named_and_can_be_taken_out(named, monkeypatch):
    """It says which ops it replays; after a crash at it the calls are replayed one by one."""
    build, seen, known = named
    replays = []

    def record(_self, calls):
        def replay():
            replays.append(frame())
            for call in calls:
                call()

        return replay

    monkeypatch.setattr(Device, "record", record)
    device = build(capture_safe=True)
    x = Tensor.from_numpy(np.ones(2, np.float32), device)

    def step():
        ops.add(x, x)
        ops.add(x, x)

    with capture(device) as graph:
        step()
    graph.replay()
    (number,) = [n for n, entry in known.items() if entry.op == "graph"]
    assert replays == [f"graph#{number} 2 calls of add"]
    device.table.quarantine.entries[known[number].what] = known[number]
    with capture(device) as graph:
        step()
    seen.clear()
    graph.replay()
    assert len(seen) == 2
    assert len(replays) == 1
    assert known[number].label == "graph"


def test_waits_name_what_was_launched_last(named, fakes):
    """Devices run calls later than they are launched: a crash in a wait is one of theirs."""
    waits = []

    class Memory(fakes.Memory):
        def copy_out(self, *args):
            waits.append(frame())
            super().copy_out(*args)

    build, seen, _ = named
    device = build()
    device.memory = Memory()
    y = ops.add(*(Tensor.from_numpy(np.ones(2, np.float32), device) for _ in range(2)))
    y.numpy()
    y.numpy()
    assert waits[0] == f"after {seen[0]}"
    assert inflight.read(waits[0]).waiting
    assert inflight.read(waits[1]) is None
