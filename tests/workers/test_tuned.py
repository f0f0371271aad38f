"""Who was measured to be the fastest goes first, for calls of those sizes alone."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from patience import patience

from propolis import OpImpl
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.cpu import CpuDevice
from propolis.dispatch import Call
from propolis.dispatch import DispatchTable
from propolis.dispatch.lock import differences
from propolis.dispatch.lock import lock
from propolis.dispatch.rules import Rules
from propolis.dispatch.tuned import Choice
from propolis.dispatch.tuned import Tuned
from propolis.dispatch.tuned import class_of
from propolis.dispatch.tuned import hardware
from propolis.plugins.tuned_file import TunedFile
from propolis.plugins.vetting import replace_json
from propolis.records import Provenance
from propolis_workers.tuner import Tuner


WHO = Provenance("stranger", "propolis-stranger", "1")


def doing(ran, name, *, seconds=0.0, factor=1.0, priority=100, **more):
    """An ``add`` that says that it ran, and how it takes its time or errs."""

    def fn(out, a, b, /):
        ran.append(name)
        time.sleep(seconds)
        out.array[...] = (a.array + b.array) * factor

    return OpImpl(
        op="add",
        fn=fn,
        dtypes={dtypes.f32},
        variant=name,
        priority=priority,
        provenance=WHO,
        **more,
    )


def table_of(impls, tuned=None):
    """A CPU whose ``add`` these serve."""
    device = CpuDevice()
    device.table = DispatchTable(device, impls, device, tuned=tuned)
    return device


def tensor(device, *shape):
    """Ones."""
    return Tensor.from_numpy(np.ones(shape, np.float32), device)


def test_the_fastest_is_found_and_taken():
    """A slow leader gives way where it was measured, and leads elsewhere; replays follow too."""
    ran = []
    impls = [
        doing(ran, "slow", seconds=2e-3, priority=110),
        doing(ran, "quick", priority=100),
    ]
    device = table_of(impls)
    tuner = Tuner(device)
    x = tensor(device, 3, 5)
    with DispatchTable.of(device).intercept(tuner):
        out = ops.add(x, x)
    np.testing.assert_array_equal(out.numpy(), 2)
    (row,) = tuner.found.rows()
    assert row[:4] == (hardware(device), "add", ("f32",), "3x5 3x5")
    assert row[4].variant == "quick"
    assert row[4].seconds["stranger slow"] > row[4].seconds["stranger quick"]

    tuned = table_of(impls, tuner.found)
    ran.clear()
    x = tensor(tuned, 3, 5)
    ops.add(x, x)
    with capture(tuned) as graph:
        ops.add(x, x)
    graph.replay()
    assert set(ran) == {"quick"}
    ran.clear()
    ops.add(tensor(tuned, 30, 5), tensor(tuned, 30, 5))
    assert ran == ["slow"]
    call = Call(ops.add, dtypes.f32, (x,), (x, x), {})
    assert DispatchTable.of(tuned).server(call).impl.variant == "quick"


def test_each_class_is_measured_once():
    """What was met before runs as it would."""
    ran = []
    device = table_of([doing(ran, "one"), doing(ran, "two", priority=90)])
    x = tensor(device, 4)
    with DispatchTable.of(device).intercept(Tuner(device)):
        ops.add(x, x)
        ran.clear()
        ops.add(x, x)
    assert ran == ["one"]


@pytest.mark.parametrize(
    "fault",
    [
        {"fn": lambda out, a, b, /: out.assign((a.array + b.array) * np.float32(1.5))},
        {"fn": lambda out, *_: out.assign(np.full(out.shape, np.nan, np.float32))},
        {"fn": lambda *_: None},
    ],
    ids=["off", "nan", "nothing written"],
)
def test_who_errs_is_not_taken(fault):
    """However fast: a result that differs by more than rounding is told, and left."""
    ran = []
    wrong = replace(doing(ran, "wrong", priority=90), **fault)
    device = table_of([doing(ran, "right", seconds=1e-3), wrong])
    tuner = Tuner(device)
    x = tensor(device, 4)
    with DispatchTable.of(device).intercept(tuner):
        np.testing.assert_array_equal(ops.add(x, x).numpy(), 2)
    assert not list(tuner.found.rows())
    assert ["has another result" in line for line in tuner.refused] == [True]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_who_raises_is_not_taken(error):
    """The call is done by who leads, and nobody is quarantined for a trial."""
    ran = []

    def fails(out, a, b, /):
        raise error("no memory for tiles")

    failing = replace(doing(ran, "failing", priority=90), fn=fails)
    device = table_of([doing(ran, "right"), failing])
    tuner = Tuner(device)
    x = tensor(device, 4)
    with DispatchTable.of(device).intercept(tuner):
        np.testing.assert_array_equal(ops.add(x, x).numpy(), 2)
    assert "no memory for tiles" in tuner.refused[0]
    assert not DispatchTable.of(device).quarantine.entries


@pytest.mark.parametrize(
    "more",
    [{"capture_safe": False}, {"record": None}, {"prepare": lambda w: w}],
    ids=["captured", "joined", "prepared"],
)
def test_a_step_loses_nothing_else(more):
    """Who cannot be captured, or joined, or wants another form of a weight, is no candidate."""
    ran = []
    able = {"capture_safe": True, "record": lambda _: None}
    slow = doing(ran, "slow", seconds=1e-3, priority=110, **able)
    device = table_of([slow, doing(ran, "quick", **{**able, **more})])
    tuner = Tuner(device)
    x = tensor(device, 4)
    with DispatchTable.of(device).intercept(tuner):
        ops.add(x, x)
    assert not list(tuner.found.rows())


def test_who_does_not_take_a_call_is_passed_over():
    """A choice is for a class of calls; ``supports`` still decides about each."""
    ran = []
    picky = doing(ran, "picky", priority=90, supports=lambda *_: "not today")
    first = doing(ran, "first")
    tuned = Tuned()
    choice = Choice("stranger", "picky", {"stranger first": 2.0, "stranger picky": 1.0})
    device = table_of([first, picky], None)
    tuned.add(hardware(device), "add", ["f32"], "4 4", choice)
    device = table_of([first, picky], tuned)
    x = tensor(device, 4)
    ops.add(x, x)
    assert ran == ["first"]
    assert str(choice) == "stranger picky, 1000000.0 us; stranger first 2000000.0"


def test_classes():
    """Sizes are rounded up to four steps a power of two; attributes tell classes apart."""
    device = table_of([])
    x, ids = tensor(device, 2, 576), tensor(device, 9)
    call = Call(ops.add, dtypes.f32, (x,), (x, 7), {"ids": ids, "causal": True})
    assert class_of(call) == "2x640 7 causal=True ids=10"


def reports(**fingerprints):
    """Plugins that were loaded, of these versions."""
    return [
        SimpleNamespace(
            status="loaded",
            files=(),
            candidate=SimpleNamespace(
                name=name, distribution=name, version=version, value=name, files=()
            ),
        )
        for name, version in fingerprints.items()
    ]


def test_choices_are_kept_until_a_plugin_changes(tmp_path, monkeypatch):
    """They hold for the same plugins, in any order; other plugins have sets of their own."""
    monkeypatch.setattr(
        "propolis.plugins.tuned_file.fingerprint", lambda candidate, *_: candidate.version
    )
    file = TunedFile(tmp_path)
    assert not list(file.tuned(reports(a="1")).rows())
    found = Tuned()
    choice = Choice("a", "x", {"a": 2e-6, "a x": 1e-6})
    found.add("cpu cpu CPU", "add", ("f32",), "4 4", choice)
    file.keep(reports(a="1", b="1"), found)
    assert list(file.tuned(reports(b="1", a="1")).rows()) == list(found.rows())
    assert not list(file.tuned(reports(a="2", b="1")).rows())
    assert not list(file.tuned(reports(a="1")).rows())
    more = Tuned()
    more.add("cpu cpu CPU", "mul", ("f32",), "4 4", choice)
    file.keep(reports(a="1", b="1"), more)
    assert len(list(file.tuned(reports(a="1", b="1")).rows())) == 2
    file.path.write_text("{not json")
    assert not list(file.tuned(reports(a="1", b="1")).rows())
    assert file.clear()
    assert not file.clear()
    assert not TunedFile(tmp_path / "absent").clear()
    assert not (tmp_path / "absent").exists()


def test_whole_numbers_must_be_equal():
    """One place of a hundred is not nearly right."""

    def place(out, x, /, dim=-1):
        del dim
        out.array[...] = x.array.argmax(-1)

    def wrong(out, x, /, dim=-1):
        place(out, x, dim)
        out.array[7] = 1

    def slow(out, x, /, dim=-1):
        time.sleep(1e-3)
        place(out, x, dim)

    more = {"op": "argmax", "dtypes": {dtypes.f32}, "provenance": WHO}
    device = table_of(
        [
            OpImpl(fn=slow, priority=100, variant="slow", **more),
            OpImpl(fn=wrong, priority=90, variant="wrong", **more),
        ]
    )
    tuner = Tuner(device)
    with DispatchTable.of(device).intercept(tuner):
        ops.argmax(Tensor.from_numpy(np.eye(100, dtype=np.float32), device), 1)
    assert not list(tuner.found.rows())
    assert "has another result" in tuner.refused[0]


def chosen(taken, leader):
    """A choice of one implementation instead of another, for ``add`` of fours on a CPU."""
    tuned = Tuned()
    choice = Choice("stranger", taken, {f"stranger {leader}": 2.0, f"stranger {taken}": 1.0})
    tuned.add(hardware(CpuDevice()), "add", ["f32"], "4 4", choice)
    return tuned


def test_a_choice_is_against_its_leader():
    """Where another leads than it was measured against, it does not hold: so after a quarantine."""
    ran = []
    names = {"first": 110, "second": 100, "third": 90}
    impls = [doing(ran, name, priority=priority) for name, priority in names.items()]
    device = table_of(impls, chosen("third", "first"))
    table, x = DispatchTable.of(device), tensor(device, 4)
    ops.add(x, x)
    assert ran.pop() == "third"
    table.condemn(impls[0], dtypes.f32, "raised something")
    ops.add(x, x)
    assert ran.pop() == "second"


def test_the_users_word_comes_first():
    """An op that the user names plugins for has their order."""
    ran = []
    other = Provenance("other", "propolis-other", "1")
    first = replace(doing(ran, "first", priority=90), provenance=other)
    second = doing(ran, "second", priority=100)
    tuned = Tuned()
    choice = Choice("stranger", "second", {"other first": 2.0, "stranger second": 1.0})
    tuned.add(hardware(CpuDevice()), "add", ["f32"], "4 4", choice)
    device = CpuDevice()
    rules = Rules({"add": ("other",)})
    device.table = DispatchTable(device, [first, second], device, rules=rules, tuned=tuned)
    x = tensor(device, 4)
    ops.add(x, x)
    assert ran == ["first"]


def test_what_is_measured_anew_replaces_what_was_chosen(tmp_path, monkeypatch):
    """Also where nobody is faster any more."""
    monkeypatch.setattr(
        "propolis.plugins.tuned_file.fingerprint", lambda candidate, *_: candidate.version
    )
    file, plugins = TunedFile(tmp_path), reports(a="1")
    file.keep(plugins, chosen("third", "first"))
    (row,) = file.tuned(plugins).rows()
    file.keep(plugins, Tuned(), [row[:4]])
    assert not list(file.tuned(plugins).rows())


@pytest.mark.parametrize(
    "spoiled", [{"choice": {"plugin": "a"}}, {"choice": None}, {"calls": None, "choice": 3}]
)
def test_rows_of_another_version_are_left_out(tmp_path, monkeypatch, spoiled):
    """What cannot be understood is not there, and harms no other row."""
    monkeypatch.setattr(
        "propolis.plugins.tuned_file.fingerprint", lambda candidate, *_: candidate.version
    )
    file, plugins = TunedFile(tmp_path), reports(a="1")
    file.keep(plugins, chosen("third", "first"))
    whole = json.loads(file.path.read_text())
    ((_, rows),) = whole.items()
    rows.append({**rows[0], **spoiled})
    file.path.write_text(json.dumps(whole))
    assert len(list(file.tuned(plugins).rows())) == 1


def test_who_tunes_at_the_same_time_loses_nothing(tmp_path, monkeypatch):
    """One waits while the other reads, adds and writes: both find their choices there."""
    monkeypatch.setattr(
        "propolis.plugins.tuned_file.fingerprint", lambda candidate, *_: candidate.version
    )
    plugins, writes = reports(a="1"), replace_json
    reading, second = threading.Event(), threading.Event()

    def slow(path, value):
        if reading.is_set():
            second.set()
        reading.set()
        second.wait(1)  # the other must not come so far; on a machine that is busy it may be late
        writes(path, value)

    monkeypatch.setattr("propolis.plugins.tuned_file.replace_json", slow)
    first = threading.Thread(target=TunedFile(tmp_path).keep, args=(plugins, chosen("x", "y")))
    first.start()
    assert reading.wait(patience(10))
    other = Tuned()
    other.add("cpu cpu CPU", "mul", ("f32",), "4 4", Choice("x", "", {"y": 2.0, "x": 1.0}))
    TunedFile(tmp_path).keep(plugins, other)
    first.join()
    assert len(list(TunedFile(tmp_path).tuned(plugins).rows())) == 2


def test_a_lock_names_who_was_measured():
    """Who goes first for which sizes; without, or with another, a check finds a difference."""
    ran = []
    impls = [doing(ran, "first", priority=110), doing(ran, "third")]
    plain, tuned = (lock(table_of(impls, one)) for one in (None, chosen("third", "first")))
    assert "tuned" not in plain["ops"]["add"]["f32"]
    assert tuned["ops"]["add"]["f32"]["tuned"] == {"4 4": "stranger third"}
    (line,) = differences(plain, tuned)
    who = "stranger (propolis-stranger 1) priority 110"
    assert line == f"add (f32): locked {who}, now {who}, for 4 4 stranger third"
