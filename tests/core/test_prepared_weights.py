from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from propolis import Prepared
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError


KEY = ops.linear.key(dtypes.f32)


class Packer:
    """
    An implementation of linear that prepares weights, and notes which form it was given.

    Its form is the transpose, in device memory, times its own number: who reads a foreign
    one computes nonsense.
    """

    def __init__(self, fakes, name, priority, *, factor=1.0, drops=False, **fields):
        self.fakes, self.factor, self.drops, self.healthy = fakes, factor, drops, True
        self.forms = []
        self.prepared = 0
        fields = {"plugin": name, "priority": priority, "prepare": self.prepare, **fields}
        self.impl = fakes.impl("linear", self.run, **fields)

    def prepare(self, w):
        """The form, and how the weight is made of it."""
        self.prepared += 1
        rows = w.shape[0]
        form = w.device.empty(w.shape[::-1], w.dtype)
        self.fakes.view(form)[...] = self.fakes.view(w).T * self.factor

        def restore():
            back = form.device.empty((rows, form.shape[0]), form.dtype)
            self.fakes.view(back)[...] = self.fakes.view(form).T / self.factor
            return back

        return Prepared(form, form.nbytes, f"x{self.factor}", restore if self.drops else None)

    def run(self, out, x, w, /, bias=None):
        """``x @ w.T``, from the form where there is one."""
        if not self.healthy:
            msg = "broken"
            raise RuntimeError(msg)
        view, form = self.fakes.view, w.prepared.get(self.prepare)
        self.forms.append("raw" if form is None else "own")
        matrix = view(w).T if form is None else view(form) / self.factor
        view(out)[...] = view(x) @ matrix


@pytest.fixture
def world(fakes):
    """Two who prepare in different ways, a weight, and what linear must give."""

    class World:
        def __init__(self, *, drops=False, fields=None):
            self.first = Packer(fakes, "first", 9, factor=2.0, drops=drops)
            self.second = Packer(fakes, "second", 1, factor=5.0, **(fields or {}))
            self.device = fakes.device(self.first.impl, self.second.impl, policy="error")
            array = np.arange(6, dtype=np.float32).reshape(2, 3)
            self.x = Tensor.from_numpy(np.ones((1, 3), np.float32), self.device)
            self.weight = self.device.table.prepare(
                ops.linear, KEY, Tensor.from_numpy(array, self.device)
            )
            self.expected = [array.sum(axis=1).tolist()]

        def linear(self):
            return ops.linear(self.x, self.weight).numpy().tolist()

    return World


def test_prepare_asks_the_winner(fakes):
    """The winner's form is carried under the function that made it, and the placement shows it."""

    def prepare(weight):
        return Prepared(weight.shape, 10 * weight.nbytes, "made ready")

    device = fakes.device(fakes.impl("linear", prepare=prepare))
    weight = Tensor.from_numpy(np.zeros((2, 3), np.float32), device)
    ready = device.table.prepare(ops.linear, KEY, weight)
    assert dict(ready.prepared) == {prepare: (2, 3)}
    assert "weights: 1 for linear made ready by fake: f32 0.0 MB -> 0.0 MB" in (
        device.table.placement.lines()
    )


def test_prepare_without_need(fakes):
    """Weights that nobody prepares stay as they are, and so do those nobody serves."""
    device = fakes.device(fakes.impl("linear"))
    weight = Tensor.from_numpy(np.zeros((2, 3), np.float32), device)
    assert device.table.prepare(ops.linear, KEY, weight) is weight
    assert device.table.prepare(ops.matmul, KEY, weight) is weight


@pytest.mark.parametrize("drops", [False, True], ids=["kept", "dropped"])
def test_the_successor_finds_its_own_form(world, drops):
    """After quarantine it first takes the weight raw, then as it prepared it; results stay."""
    w = world(drops=drops)
    assert w.linear() == w.expected
    w.first.healthy = False
    assert [w.linear() for _ in range(3)] == [w.expected] * 3
    assert (w.first.forms, w.second.forms) == (["own"], ["raw", "own", "own"])
    assert w.second.prepared == 1
    assert set(w.weight.prepared) == {w.second.prepare}
    assert [line for line in w.device.table.placement.lines() if line.startswith("weights")] == [
        "weights: 1 for linear x5.0 by second: f32 0.0 MB -> 0.0 MB"
    ]


@pytest.mark.parametrize("drops", [False, True], ids=["kept", "dropped"])
def test_a_captured_step_goes_on_with_it(world, drops):
    """A graph recorded before the quarantine finds the new form in the tensor it holds."""
    w = world(drops=drops)
    with capture(w.device) as graph:
        y = ops.linear(w.x, w.weight)
    w.first.healthy = False
    for number in (2, 3, 4):
        w.x.assign(np.full((1, 3), number, np.float32))
        graph.replay()
        assert y.numpy().tolist() == [[number * v for v in w.expected[0]]]
    assert w.second.forms == ["raw", "own", "own"]


def test_a_dropped_weight_takes_no_memory(world):
    """The prepared form alone is there; after quarantine the weight and its successor's."""
    w = world(drops=True)
    live = w.device.memory.live
    assert len(live) == 2  # x, and the form
    assert w.linear() == w.expected
    assert len(live) == 2
    w.first.healthy = False
    w.linear()
    assert len(live) == 3  # x, the weight again, the second's form


def test_a_dropped_weight_comes_back_for_whoever_asks(world):
    """numpy(), views and other ops see the elements, once restored and then there."""
    expected = [[0, 1, 2], [3, 4, 5]]
    assert world(drops=True).weight.numpy().tolist() == expected
    assert world(drops=True).weight.narrow(0, 1, 1).numpy().tolist() == expected[1:]
    w = world(drops=True)
    assert w.weight.to(w.device.table.cpu).numpy().tolist() == expected
    assert type(w.weight) is Tensor
    assert w.linear() == w.expected
    assert w.first.forms == ["own"]


def test_asking_for_something_else_brings_nothing_back(world):
    """Shape, layout and a misspelt name need no elements."""
    w = world(drops=True)
    live = len(w.device.memory.live)
    assert (w.weight.shape, w.weight.nbytes, w.weight.is_contiguous) == ((2, 3), 24, True)
    with pytest.raises(AttributeError, match="no attribute 'shap'"):
        w.weight.shap  # noqa: B018
    into = w.device.empty((1, 2), dtypes.f32)
    ops.linear.into(into, w.x, w.weight)
    assert into.numpy().tolist() == w.expected
    assert len(w.device.memory.live) == live + 1


def test_the_cpu_rung_gets_a_dropped_weight(fakes):
    """The last rung reads the restored elements, and no foreign form."""
    first = Packer(fakes, "first", 9, factor=2.0, drops=True)
    device = fakes.device(first.impl)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = Tensor.from_numpy(np.ones((1, 3), np.float32), device)
    weight = device.table.prepare(ops.linear, KEY, Tensor.from_numpy(array, device))
    with capture(device) as graph:
        y = ops.linear(x, weight)
    first.healthy = False
    graph.replay()
    assert y.numpy().tolist() == [array.sum(axis=1).tolist()]
    assert weight.prepared == {}


def test_a_declined_call_gets_the_weight_as_it_is(world):
    """Who stands in for one call takes no foreign form, and prepares nothing."""
    w = world()
    object.__setattr__(w.first.impl, "supports", lambda *_, **__: "not today")
    w.device.table.rebind()
    assert w.linear() == w.expected
    assert (w.second.forms, w.second.prepared) == (["raw"], 0)
    assert set(w.weight.prepared) == {w.first.prepare}


def test_variants_of_one_plugin_have_their_own_forms(fakes):
    """Two implementations of one plugin do not read each other's."""
    pair = [
        Packer(fakes, "one", priority, factor=factor, variant=name)
        for priority, factor, name in ((9, 2.0, "tiled"), (1, 5.0, "plain"))
    ]
    device = fakes.device(*(p.impl for p in pair), policy="error")
    x = Tensor.from_numpy(np.ones((1, 3), np.float32), device)
    weight = Tensor.from_numpy(np.ones((2, 3), np.float32), device)
    weight = device.table.prepare(ops.linear, KEY, weight)
    pair[0].healthy = False
    for _ in range(2):
        assert ops.linear(x, weight).numpy().tolist() == [[3, 3]]
    assert pair[1].forms == ["raw", "own"]


def test_a_successor_without_need_or_memory(world, monkeypatch):
    """It serves the weight raw, where it prepares nothing or cannot now."""
    w = world(fields={"prepare": None})
    w.first.healthy = False
    assert [w.linear(), w.linear()] == [w.expected] * 2
    w = world()
    w.first.healthy = False

    def full(_weight):
        msg = "full"
        raise OutOfMemoryError(msg)

    object.__setattr__(w.second.impl, "prepare", full)
    assert [w.linear(), w.linear()] == [w.expected] * 2
    assert w.second.forms == ["raw", "raw"]
    assert w.weight.prepared == {}


def test_one_that_cannot_prepare_is_taken_out(fakes, cpu):
    """The next one prepares, or the CPU takes the weight; alone, its error is seen."""

    def broken(_weight):
        msg = "no repacking"
        raise RuntimeError(msg)

    good = Packer(fakes, "good", 1)
    bad = fakes.impl("linear", prepare=broken, plugin="bad", priority=9)
    device = fakes.device(bad, good.impl)
    weight = Tensor.from_numpy(np.ones((2, 3), np.float32), device)
    assert set(device.table.prepare(ops.linear, KEY, weight).prepared) == {good.prepare}
    (entry,) = device.table.quarantine.entries.values()
    assert entry.source.plugin == "bad"
    assert entry.reason == "prepare() raised RuntimeError: no repacking"
    device = fakes.device(bad)
    weight = Tensor.from_numpy(np.ones((2, 3), np.float32), device)
    assert device.table.prepare(ops.linear, KEY, weight) is weight
    assert len(device.table.quarantine.entries) == 1
    cpu.table = DispatchTable(cpu, [dataclasses.replace(bad, device="cpu")], cpu)
    with pytest.raises(RuntimeError, match="no repacking"):
        cpu.table.prepare(ops.linear, KEY, Tensor.from_numpy(np.ones((2, 3), np.float32), cpu))
    assert cpu.table.quarantine.entries == {}


def test_one_that_prepares_nothing_is_taken_out(fakes):
    """What is no Prepared is told as that, and the next one prepares."""
    good = Packer(fakes, "good", 1)
    bad = fakes.impl("linear", prepare=lambda _: None, plugin="bad", priority=9)
    device = fakes.device(bad, good.impl)
    weight = Tensor.from_numpy(np.ones((2, 3), np.float32), device)
    assert set(device.table.prepare(ops.linear, KEY, weight).prepared) == {good.prepare}
    (entry,) = device.table.quarantine.entries.values()
    assert entry.reason == "prepare() raised TypeError: it gave a NoneType, not a Prepared"


def test_a_strided_weight_is_packed_before_it_is_prepared(fakes):
    """Who takes no strides prepares a contiguous copy, and finds its form at the call."""
    packer = Packer(fakes, "dense", 1, strided=False)
    device = fakes.device(packer.impl, fakes.copy)
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    weight = Tensor.from_numpy(array, device).transpose(0, 1)
    weight = device.table.prepare(ops.linear, KEY, weight)
    x = Tensor.from_numpy(np.ones((1, 3), np.float32), device)
    assert ops.linear(x, weight).numpy().tolist() == [array.sum(axis=0).tolist()]
    assert packer.forms == ["own"]
    assert device.table.placement.strided_copies == 0


def test_a_weight_for_two_dtypes_keeps_the_form_of_the_healthy_one(world, fakes):
    """Quarantine of one dtype leaves the form that the other dtype still uses."""
    w = world()
    f16 = ops.linear.key(dtypes.f16)
    both = w.device.table.prepare(ops.linear, f16, w.weight)
    assert w.first.prepared == 1
    w.device.table.condemn(w.first.impl, f16, "raised")
    assert set(both.prepared) == {w.first.prepare, w.second.prepare}


def test_a_restore_that_gives_something_else(world, fakes):
    """It is told to whoever asks, by name."""
    w = world(drops=True)
    from propolis.released import release

    wrong = w.weight.device.empty((1, 1), dtypes.f32)
    weight = Tensor.from_numpy(np.ones((2, 3), np.float32), w.device)
    release(weight, lambda: wrong)
    with pytest.raises(PluginError, match=r"gave <Tensor 1x1 f32 .*not <Tensor 2x3 f32"):
        weight.numpy()
