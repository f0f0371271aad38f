from __future__ import annotations

import json

import numpy as np
import pytest

from propolis import Provenance
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.plugins.contract import check_impl


def count(*shape):
    """0, 1, 2 ... in that shape."""
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@pytest.fixture
def parts(fakes):
    """A device with matmul and add, where nobody implements linear."""
    return fakes.device(fakes.impl("matmul", fakes.kernel(np.matmul)), fakes.impl("add"))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3), (0, 3)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_runs_as_its_parts(parts, shape, biased):
    """On the device, without the CPU, for every rank and with or without the bias."""
    x, w, bias = (Tensor.from_numpy(count(*s), parts) for s in (shape, (4, 3), (4,)))
    result = ops.linear(x, w, bias=bias) if biased else ops.linear(x, w)
    truth = count(*shape) @ count(4, 3).T + (count(4) if biased else 0)
    np.testing.assert_array_equal(result.numpy(), truth)
    assert parts.table.fallbacks.total.calls == 0
    assert parts.table.placement.lines() == [
        f"placement: {2 + biased} of {2 + biased} ops on fake:0 by fake (dist-fake 1.0)",
        "placement: decomposed: linear (into matmul, add)",
    ]
    assert parts.table.placement.as_dict()["decomposed"] == {"linear": "matmul, add"}


def test_a_missing_part_sends_the_whole_op_to_the_cpu(fakes):
    """One copy there and back instead of one for each part; the reason names the part."""
    device = fakes.device(fakes.impl("matmul"))
    x, w = (Tensor.from_numpy(count(*s), device) for s in ((2, 3), (4, 3)))
    np.testing.assert_array_equal(ops.linear(x, w).numpy(), count(2, 3) @ count(4, 3).T)
    (((op, reason), tally),) = device.table.fallbacks.tallies.items()
    assert (op, tally.calls) == ("linear", 1)
    assert reason == (
        "no plugin implements linear for fake:0; decomposed into matmul, add: add (f32): "
        "no plugin implements add for fake:0"
    )


def test_the_parts_take_the_ops_dtypes(fakes):
    """A part that is there for another dtype does not count."""
    adder = fakes.impl("add", dtypes={dtypes.f16})
    table = fakes.device(fakes.impl("matmul"), adder).table
    assert not table.trace(ops.linear, dtypes.f32).on_device
    assert table.trace(ops.linear, dtypes.f16).is_decomposed


def test_it_stands_below_the_candidates(fakes):
    """It takes what they decline, call by call."""
    picky = fakes.impl("linear", supports=lambda *_a, **_k: "too small")
    device = fakes.device(picky, fakes.impl("matmul", fakes.kernel(np.matmul)), fakes.impl("add"))
    x, w = (Tensor.from_numpy(count(*s), device) for s in ((2, 3), (4, 3)))
    np.testing.assert_array_equal(ops.linear(x, w).numpy(), count(2, 3) @ count(4, 3).T)
    assert device.table.fallbacks.total.calls == 0


def test_it_can_be_captured(parts):
    """A replay computes anew over the same tensors; the graph holds the op, not its parts."""
    x, w, b = (Tensor.from_numpy(count(*s), parts) for s in ((2, 3), (4, 3), (4,)))
    with capture(parts) as graph:
        y = ops.linear(x, w, bias=b)
    assert len(graph) == 1
    x.assign(-count(2, 3))
    graph.replay()
    np.testing.assert_array_equal(y.numpy(), -count(2, 3) @ count(4, 3).T + count(4))


def test_the_cpu_may_decompose_too(fakes, cpu):
    """A device without the parts reaches a CPU that has nothing but them."""
    has = cpu.table._impls
    cpu.table = DispatchTable(cpu, [*has["matmul"], *has["add"]], cpu)
    device = fakes.device()
    x, w = (Tensor.from_numpy(count(*s), device) for s in ((2, 3), (4, 3)))
    np.testing.assert_array_equal(ops.linear(x, w).numpy(), count(2, 3) @ count(4, 3).T)


def test_decompositions_that_go_round_end(fakes, monkeypatch):
    """Two ops, each decomposed into the other, are served by neither."""
    from propolis.opspec.spec import Decomposition

    def unreachable(*_args, **_kwargs):
        pytest.fail("it must not run")

    there = Decomposition(unreachable, lambda a: {ops.mul: (a,)})
    back = Decomposition(unreachable, lambda a: {ops.add: (a,)})
    monkeypatch.setattr(ops.add, "decomposition", there)
    monkeypatch.setattr(ops.mul, "decomposition", back)
    assert not fakes.device().table.trace(ops.add, dtypes.f32).on_device


def test_a_part_that_does_not_take_the_dtype(fakes, monkeypatch):
    """The part's own error is the reason."""
    from propolis.opspec.spec import Decomposition

    odd = Decomposition(print, lambda _a: {ops.softmax: (dtypes.i32,)})
    monkeypatch.setattr(ops.add, "decomposition", odd)
    split = fakes.device().table.trace(ops.add, dtypes.f32).parts
    assert split.refusal.startswith("softmax: x is i32")


@pytest.mark.parametrize("spec", [s for s in ops.catalogue().values() if s.decomposition])
def test_every_decomposition_of_the_catalogue_fits_its_op(spec, fakes):
    """Its function takes what an implementation takes; every key has parts with legal keys."""
    check_impl(fakes.impl(spec.name, spec.decomposition.fn), Provenance("p", "d", "1"))
    first, *rest = spec.dtypes
    for kind in spec.dtypes[first]:
        kinds = (kind, *(next(iter(spec.dtypes[p])) for p in rest))
        for part, wanted in spec.decomposition.parts(*kinds).items():
            part.key(*wanted)


PARTS = """
def matmul(out, a, b, /): pass
def add(out, a, b, /): pass
@hookimpl
def propolis_ops(device):
    if device.kind == "toy":
        yield OpImpl(op="matmul", fn=matmul, device="toy", dtypes={dtypes.f32})
        yield OpImpl(op="add", fn=add, device="toy", dtypes={dtypes.f32})
"""


@pytest.mark.usefixtures("unvetted")
def test_explain(cli, site, sources):
    """It is the winner, or refused with the reason, for people and for machines."""
    site.plugin("toy", sources.toy_device + PARTS)
    done = cli("explain", "linear", "--device", "toy")
    assert "linear (x=f32) on toy:0: decomposed into matmul, add" in done.out
    assert "  winner: decomposed into matmul, add: every part is served here" in done.out
    done = cli("explain", "linear", "--device", "toy", "--dtype", "f16")
    assert "on toy:0: the cpu: cpu_ref" in done.out
    assert "  rejected: decomposed into matmul, add: matmul (f16): toy" in done.out
    found = json.loads(cli("explain", "linear", "--json").out)
    assert found["decomposed"] == {"parts": ["matmul", "add"], "refusal": None}
    rows = {o["op"]: o for o in json.loads(cli("ops", "--device", "toy", "--json").out)}
    assert rows["linear"]["served_by"]["decomposed into matmul, add"] == ["f32"]
