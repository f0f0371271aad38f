"""Who made a device fail, or its process end, is found out by waiting for each call."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Device
from propolis import Tensor
from propolis import capture
from propolis import ops
from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.dispatch import quarantine as quarantines
from propolis.doctor import examine
from propolis.errors import DeviceLostError
from propolis.errors import KernelFaultError
from propolis.plugins import crash_file
from propolis.plugins import quarantine_file
from propolis.plugins.quarantine_file import QuarantineFile
from propolis.plugins.serial_file import SerialFile
from propolis.runtime import Runtime
from propolis_conformance.testing import FakeDevice


@pytest.fixture
def failing(fakes, cpu):
    """A device whose `sub` makes it fail, later: the next request that waits finds out."""

    def build(error, **fields):
        def launch(out, a, b, /):
            device.memory.lost = error

        device = FakeDevice()
        bad = fakes.impl("sub", fn=launch, plugin="bad", priority=9)
        device.table = DispatchTable(device, [bad, fakes.impl(**fields), fakes.copy], cpu)
        return device

    return build


@pytest.fixture
def told(monkeypatch):
    """What is said of kinds of device, by a quarantine that is told to `listen` to."""
    said = []

    def listen(device):
        quarantine = device.table.quarantine
        quarantine.suspect = lambda kind, why: said.append(("suspect", kind, why))
        quarantine.settle = lambda kind, found: said.append(("settled", kind, found))
        return said

    return listen


@pytest.fixture
def running():
    """The folder of this test's crash files."""
    return Config.load().cache_dir / crash_file.FOLDER


def on(device):
    """A tensor there."""
    return Tensor.from_numpy(np.float32([1, 2]), device)


FAULT = KernelFaultError("fake:0: a kernel failed")


def test_a_kernel_that_fails_later(failing, told):
    """Nobody knows which: nobody is taken out, and the next process shall find out."""
    device = failing(FAULT)
    said, x = told(device), on(device)
    ops.sub(x, x)
    with pytest.raises(DeviceLostError):
        x.numpy()
    assert device.table.quarantine.entries == {}
    assert said == [("suspect", "fake", "a process lost fake:0: fake:0: a kernel failed")]


def test_each_call_is_waited_for(failing, told):
    """In the next process the call that fails raises itself, is taken out, and none other is."""
    device = failing(FAULT)
    said, x = told(device), on(device)
    device.table.quarantine.serialised["fake"] = "process 3 ended"
    with capture_logs() as logs:
        ops.add(x, x)
        waits = device.memory.waits
        ops.add(x, x)
        assert device.memory.waits == waits + 1
        with pytest.raises(KernelFaultError, match="a kernel failed"):
            ops.sub(x, x)
    (entry,) = device.table.quarantine.entries.values()
    assert (entry.op, entry.source.plugin) == ("sub", "bad")
    assert entry.reason == "raised KernelFaultError: fake:0: a kernel failed"
    assert said == [("settled", "fake", True)]
    assert [line["event"] for line in logs] == [
        "device.serialised",
        "device.lost",
        "op.quarantined",
    ]
    assert logs[0]["reason"] == "process 3 ended"


def test_a_step_of_many_calls(failing, told, monkeypatch):
    """A launch of a graph is one, too: what fails in it is looked for by the next process."""

    def record(_self, _calls):
        return lambda: None  # it is queued

    monkeypatch.setattr(Device, "record", record)
    device = failing(FAULT, capture_safe=True)
    said, x = told(device), on(device)
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
    y.numpy()
    graph.replay()
    assert device.launched.__code__.co_name.startswith("graph")
    device.memory.lost = FAULT
    with pytest.raises(KernelFaultError):
        y.numpy()
    assert [one[:2] for one in said] == [("suspect", "fake")]


def test_calls_of_other_threads(failing, told):
    """No call is launched while another's is waited for."""
    device = failing(FAULT)
    told(device)
    device.table.quarantine.serialised["fake"] = "process 3 ended"
    x, ended = on(device), threading.Event()
    with device.table.quarantine.alone:
        other = threading.Thread(target=lambda: (ops.add(x, x), ended.set()))
        other.start()
        assert not ended.wait(0.2)
    other.join()
    assert ended.is_set()


def test_when_the_time_is_over(running):
    """A process says that it waits no more: then who was running need not be at fault."""
    left_behind(running, serialised=True, frame="mul#1 out 4")
    file = running / "12-x.txt"
    file.write_text('{"number": 0, "what": {}}\n' + file.read_text())
    crash_file.note_hung(running.parent, 12)
    ((_, _, sure),) = next(iter(crash_file.collect(running.parent))).calls
    assert not sure


@pytest.mark.parametrize("serialised", [True, False])
def test_a_device_that_goes_is_nobodys_fault(failing, told, serialised):
    """An error that is not of kernels takes nobody out, and nobody is looked for."""
    device = failing(DeviceLostError("its memory is failing"))
    said, x = told(device), on(device)
    if serialised:
        device.table.quarantine.serialised["fake"] = "process 3 ended"
    with pytest.raises(DeviceLostError, match="memory"):
        ops.sub(x, x).numpy()
    assert device.table.quarantine.entries == {}
    assert said == []
    assert device.table.quarantine.waited == {}


def test_graphs_meanwhile(failing, monkeypatch):
    """Calls of a step are launched one by one until the time is over, then at once."""
    launches = []

    def record(_self, calls):
        def replay():
            launches.append(len(calls))
            for call in calls:
                call()

        return replay

    monkeypatch.setattr(Device, "record", record)
    device = failing(FAULT, capture_safe=True)
    quarantine, x = device.table.quarantine, on(device)
    quarantine.serialised["fake"] = "process 3 ended"
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
    graph.replay()
    assert launches == []
    assert not graph.is_one_launch()
    monkeypatch.setattr(quarantines.time, "monotonic", lambda: quarantine._until["fake"] + 1)
    waits = device.memory.waits
    for _ in range(2):
        graph.replay()
    assert launches == [2, 2]
    assert graph.is_one_launch()
    assert device.memory.waits == waits
    assert y.numpy().tolist() == [3, 6]


def test_a_process_that_ends_as_it_should(failing, told):
    """It found nobody: later ones wait no more; one that called nothing says nothing of it."""
    device = failing(FAULT)
    said, quarantine = told(device), device.table.quarantine
    quarantine.serialised["fake"] = "process 3 ended"
    quarantine_file._settle(quarantine)
    assert said == []
    x = on(device)
    ops.add(x, x)
    quarantine_file._settle(quarantine)
    assert said == []  # too few to know
    for _ in range(quarantine_file._ENOUGH):
        ops.add(x, x)
    quarantine_file._settle(quarantine)
    assert said == [("settled", "fake", False)]


# -- what processes leave ---------------------------------------------------------------


def left_behind(folder, *, serialised, frame="after mul#1 out 4"):
    """The file of a process that ended while it waited for a device."""
    source = {"plugin": "bad", "distribution": "dist-bad", "version": "1.0"}
    texts = {"op": "mul", "variant": "", "kind": "gpu", "arch": "g1", "reason": "", "key": "k"}
    what = {"source": source, "dtypes": ["f32"], **texts, "serialised": serialised}
    stack = f'Current thread 0x01 (most recent call first):\n  File "x", line 1 in {frame}\n'
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"number": 1, "what": what}) + f"\nFatal Python error: Aborted\n\n{stack}"
    (folder / "12-x.txt").write_text(text)


def test_a_wait_that_ended_a_process(cli):
    """What was launched last is not taken out: it may have been any; said everywhere."""
    cache = Config.load().cache_dir
    left_behind(cache / crash_file.FOLDER, serialised=False)
    with capture_logs() as logs:
        quarantine = Runtime.start(Config.load()).quarantine
    assert quarantine.entries == {}
    (line,) = [line for line in logs if line["event"] == "process.crashed"]
    how = "mul (f32) of bad (dist-bad 1.0) was launched last when a wait for the device ended"
    assert line["reason"].startswith(how)
    assert quarantine.serialised["gpu"].startswith(f"process 12: {how}")
    doctor = {f.name: f.result for f in examine(Config.load, import_plugins=False)}
    assert doctor["quarantine"].status == "warning"
    assert "each call on gpu will be waited for" in doctor["quarantine"].summary
    assert "gpu: each call will be waited for" in cli("quarantine", "list").out
    cli("quarantine", "clear")
    assert SerialFile(cache).kinds() == {}


def test_a_wait_that_ended_a_process_after_nobody_was_found(cli):
    """Where each call was waited for in vain, as a graph's do not fail alone: the best guess."""
    cache = Config.load().cache_dir
    SerialFile(cache).add("gpu", "process 3 ended")
    SerialFile(cache).tried("gpu")
    left_behind(cache / crash_file.FOLDER, serialised=False)
    Runtime.start(Config.load())
    (entry,) = json.loads(cli("quarantine", "list", "--json").out)
    assert (entry["op"], entry["kind"]) == ("mul", "gpu")
    assert SerialFile(cache).kinds() == {}


@pytest.mark.parametrize("serialised", [False, True])
def test_a_process_that_hung(serialised):
    """Who ran when it was ended may have waited for others; not where each is waited for."""
    cache = Config.load().cache_dir
    left_behind(cache / crash_file.FOLDER, serialised=serialised, frame="mul#1 out 4")
    crash_file.note_hung(cache, 12)
    quarantine = QuarantineFile(cache)
    entries = quarantine.collect()
    assert [entry.op for entry, _ in entries] == ["mul"] * serialised
    assert ("gpu" in quarantine.serial.kinds()) == (not serialised)
    assert list((cache / crash_file.FOLDER).iterdir()) == []


def test_a_process_that_crashed_at_a_call():
    """Nobody asks for a second crash, where a call itself ended it."""
    cache = Config.load().cache_dir
    left_behind(cache / crash_file.FOLDER, serialised=False, frame="mul#1 out 4")
    ((entry, _),) = QuarantineFile(cache).collect()
    assert entry.reason == "ended the process (Aborted): out 4"


def test_the_file(tmp_path, monkeypatch):
    """It is kept for a day; one that is damaged, or cannot be written, is none."""
    file = SerialFile(tmp_path)
    file.add("rocm", "why")
    file.add("fake", "also")
    assert SerialFile(tmp_path).kinds() == {"rocm": "why", "fake": "also"}
    file.remove("fake")
    assert file.kinds() == {"rocm": "why"}
    assert not file.was_tried("rocm")
    file.tried("rocm")
    assert (file.kinds(), file.was_tried("rocm")) == ({}, True)
    assert not file.was_tried("fake")
    file.add("rocm", "why")
    now = time.time()
    monkeypatch.setattr("propolis.plugins.serial_file.time.time", lambda: now + 90000)
    assert file.kinds() == {}
    for text in ("[1]", '{"rocm": 3}', "{", '{"rocm": ["why"]}'):
        file.path.write_text(text)
        assert file.kinds() == {}
    (tmp_path / "taken").write_text("")
    SerialFile(tmp_path / "taken").add("rocm", "why")
    assert SerialFile(tmp_path / "taken").kinds() == {}
