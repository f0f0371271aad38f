from __future__ import annotations

import itertools

import pytest

from propolis import DType
from propolis import dtypes
from propolis import ops
from propolis.dispatch import resolve
from propolis.dispatch.resolve import ladder_order


def said(trace):
    """(plugin, status) of each candidate, in order."""
    return [(v.impl.provenance.plugin, v.status) for v in trace.verdicts]


@pytest.fixture
def ladder(fakes):
    """Four candidates that differ in priority, distribution and plugin name."""
    return [
        fakes.impl(plugin="tuned", priority=300),
        fakes.impl(plugin="apple", priority=100),
        fakes.impl(plugin="pear", priority=100),
        fakes.impl(plugin="reference", priority=0),
    ]


def test_order_is_priority_then_distribution_then_name(fakes, ladder):
    """Whatever the order of registration, the ladder is the same."""
    device = fakes.device()
    for shuffled in itertools.permutations(ladder):
        trace = resolve(ops.add, dtypes.f32, device, shuffled)
        assert [i.provenance.plugin for i in trace.chain] == ["tuned", "apple", "pear", "reference"]
        assert trace.winner is ladder[0]


def test_what_a_plugin_found_out(fakes, ladder):
    """A plugin that tried the device and found it wanting says why; the next one serves."""
    broken = fakes.impl(plugin="vendor", priority=200, unusable="no machine code: install it")
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [*ladder[1:], broken])
    assert trace.verdicts[0].reason == "no machine code: install it"
    assert trace.winner is ladder[1]


def test_every_candidate_has_a_reason(fakes, ladder):
    """The winner, those behind it, and why."""
    trace = resolve(ops.add, dtypes.f32, fakes.device(), ladder)
    assert [s for _, s in said(trace)] == ["winner", "standby", "standby", "standby"]
    assert trace.verdicts[0].reason == "highest priority (300)"
    assert trace.verdicts[1].reason == "behind tuned (priority 300 to 100)"
    assert (trace.op, trace.device, trace.key) == ("add", "fake:0", (dtypes.f32,))


def test_equal_candidates_of_one_plugin_keep_its_order(fakes):
    """A plugin that gives an op twice is asked in the order it gave."""
    first, second = fakes.impl(notes="1"), fakes.impl(notes="2")
    device = fakes.device()
    assert resolve(ops.add, dtypes.f32, device, [first, second]).winner.notes == "1"
    assert resolve(ops.add, dtypes.f32, device, [second, first]).winner.notes == "2"


def test_supports_is_mentioned(fakes):
    """A winner that may still decline says so."""
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [fakes.impl(supports=lambda *_: None)])
    assert trace.verdicts[0].reason == "highest priority (0), if its supports() accepts the call"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "rocm"}, "runs on rocm, not on fake"),
        (
            {"archs": frozenset({"gfx90a", "gfx1100"})},
            "built for gfx1100, gfx90a; this device is fa",
        ),
        ({"archs": frozenset()}, "built for ; this device"),
        ({"dtypes": {dtypes.f16, dtypes.f64}}, "a is f32; it takes f64, f16"),
        ({"dtypes": frozenset()}, "a is f32; it takes nothing"),
        ({"dtypes": {"a": [dtypes.f16]}}, "a is f32; it takes f16"),
    ],
)
def test_static_refusals(fakes, fields, reason):
    """Device, architecture and dtypes are decided once, and the reason names both sides."""
    bad, good = fakes.impl(plugin="bad", priority=9, **fields), fakes.impl(plugin="good")
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [bad, good])
    assert said(trace) == [("bad", "rejected"), ("good", "winner")]
    assert trace.verdicts[0].reason.startswith(reason)
    assert trace.rejections.startswith(f"bad (dist-bad 1.0): {reason}")


def test_the_devices_own_architecture_is_taken(fakes):
    """An implementation for this architecture serves."""
    trace = resolve(
        ops.add, dtypes.f32, fakes.device(), [fakes.impl(archs=frozenset({"fake1", "fake2"}))]
    )
    assert trace.winner is not None


def test_dtypes_by_parameter(fakes):
    """A mapping restricts the parameters it names; others take what the op allows."""
    device = fakes.device()
    partial = fakes.impl("kv_append", dtypes={"cache": {dtypes.f32}})
    key = (dtypes.f32, dtypes.i64)
    assert resolve(ops.kv_append, key, device, [partial]).winner is partial
    whole = fakes.impl("qmatmul", dtypes={"x": {dtypes.f32}, "w": {dtypes.q8_0}})
    trace = resolve(ops.qmatmul, (dtypes.f32, dtypes.q4_k), device, [whole])
    assert trace.verdicts[0].reason == "w is q4_k; it takes q8_0"


def test_nobody(fakes):
    """Without candidates there is a trace all the same, and it says so."""
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [])
    assert trace.winner is None
    assert trace.chain == []
    assert trace.rejections == "no plugin implements add for fake:0"


def test_unstamped_candidates_can_be_resolved(fakes):
    """Records that no host has stamped still sort and still name something."""
    import dataclasses

    bare = dataclasses.replace(fakes.impl(), provenance=None)
    assert ladder_order(bare) == (0, 0, "", "", "")
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [bare, bare])
    assert trace.verdicts[1].reason == "behind another (priority 0 to 0, then by distribution)"
    assert isinstance(trace.key[0], DType)
