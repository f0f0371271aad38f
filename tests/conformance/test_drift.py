from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis_conformance.drift import Drift
from propolis_conformance.drift.facts import oracle
from propolis_conformance.drift.measure import measure


def on(device, *values):
    """A float32 tensor with those elements there."""
    return Tensor.from_numpy(np.float32(values), device)


@pytest.fixture
def watch(runtime):
    """A Drift for a device, which judges every call unless told otherwise."""

    def make(device, **options):
        return Drift(device, oracle(runtime), **options)

    return make


# -- the measures ------------------------------------------------------------------


def test_the_measures():
    """Absolute, relative, in units of the last place, normalised, and against the tolerance."""
    expected = np.array([1.0, -4.0, 0.0])
    actual = np.float32([1 + 2**-23, -4, 1e-6])
    found = measure(ops.sin, actual, expected, dtypes.f32)
    assert found.max_abs == pytest.approx(1e-6)
    assert found.max_rel == pytest.approx(2**-23)
    assert found.ulp == 1
    assert found.nmse == pytest.approx((2**-46 + 1e-12) / 17)
    assert found.ratio == pytest.approx(1e-6 / ops.sin.tolerance[dtypes.f32].atol, rel=1e-3)
    assert (found.wrong, found.nonfinite, found.numel) == (0, 0, 3)


@pytest.mark.parametrize("dtype", sorted(dtypes.FLOATS, key=str))
def test_units_of_the_last_place(dtype):
    """One step of any dtype is one unit, as its own next number says."""
    one = np.asarray(1.5, dtype.numpy)
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[one.itemsize]
    after = (one.view(bits) + bits(1)).view(dtype.numpy)
    found = measure(ops.exp, after.reshape(1), one.astype(np.float64).reshape(1), dtype)
    assert found.ulp == 1
    assert found.max_abs == pytest.approx(float(ml_dtypes.finfo(dtype.numpy).eps))


def test_nan_and_infinities():
    """Where they belong they are right; elsewhere no tolerance covers them."""
    expected = np.array([np.nan, np.inf, 1.0])
    right = measure(ops.exp, np.float32([np.nan, np.inf, 1]), expected, dtypes.f32)
    assert (right.passed, right.ratio, right.max_abs) == (True, 0, 0)
    wrong = measure(ops.exp, np.float32([1, -np.inf, np.nan]), expected, dtypes.f32)
    assert (wrong.passed, wrong.nonfinite, wrong.wrong) == (False, 3, 3)
    assert wrong.ratio == math.inf
    assert wrong.as_dict()["ratio"] is None


def test_integers_are_exact():
    """One off is beyond any tolerance."""
    found = measure(ops.argmax, np.array([1, 2]), np.array([1, 3]), dtypes.i64)
    assert (found.max_abs, found.wrong, found.ratio) == (1, 1, math.inf)
    assert measure(ops.argmax, np.array([1, 3]), np.array([1, 3]), dtypes.i64).ratio == 0


def test_empty_and_misshapen_results():
    """Nothing to compare is right; another shape is wrong."""
    assert measure(ops.exp, np.zeros(0, np.float32), np.zeros(0), dtypes.f32).passed
    assert not measure(ops.exp, np.zeros(2, np.float32), np.zeros(3), dtypes.f32).passed


# -- watching ----------------------------------------------------------------------


def test_the_op_and_the_layer_that_are_off(fakes, watch):
    """A kernel that is slightly wrong once is found, at its layer and by its plugin."""
    calls = []

    def moody(a, b):
        calls.append(1)
        return (a + b) * np.float32(1 + 1e-6 * (len(calls) == 2))

    device = fakes.device(
        fakes.impl(fn=fakes.kernel(moody)), fakes.impl("mul", fakes.kernel(np.multiply))
    )
    x = on(device, 1.25, 2.5)
    drift = watch(device)
    with drift.watching():
        for drift.layer in ("0", "1", "2"):
            ops.mul(ops.add(x, x), x)
    assert drift.failed == 1
    assert [*drift.by_op()] == ["add", "mul"]
    worst = drift.by_op()["add"]
    assert (worst.layer, worst.by, worst.calls, worst.checked) == (
        "1",
        "fake (dist-fake 1.0)",
        3,
        3,
    )
    assert (worst.errors.wrong, worst.errors.source) == (2, "numpy f64")
    failed = {layer: cells["add"].failed for layer, cells in drift.by_layer().items()}
    assert failed == {"0": 0, "1": 1, "2": 0}
    errors, call = drift.worst["add"]
    assert (errors.passed, call.facts["layer"], call.facts["plugin"]) == (False, "1", "fake")
    assert call.tensors["a"].value(device).array.tolist() == [1.25, 2.5]


def test_the_truth_is_of_the_inputs_given(fakes, watch):
    """An input that the kernel overwrites, or that is the destination, is judged as it was."""

    def overwrites(out, a, b, /):
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)
        fakes.view(a)[...] = 7

    device = fakes.device(fakes.impl(fn=overwrites, in_place=True))
    x, y = on(device, 1, 2), on(device, 3, 4)
    drift = watch(device)
    with drift.watching():
        ops.add(x, y)
        ops.add.into(y, y, on(device, 1, 1))
    assert (drift.failed, drift.by_op()["add"].checked) == (1, 2)  # the second left y at 7


def test_ops_that_mutate(fakes, watch, cpu):
    """The target before the call is its input, and after it its result."""
    drift = watch(cpu)
    cache = Tensor.from_numpy(np.zeros((1, 4, 1, 2), np.float32), cpu)
    x = Tensor.from_numpy(np.ones((1, 1, 1, 2), np.float32), cpu)
    with drift.watching():
        ops.kv_append(cache, x, Tensor.from_numpy(np.array([[2]], np.int32), cpu))
    assert (drift.failed, drift.by_op()["kv_append"].checked) == (0, 1)
    assert drift.worst["kv_append"][1].tensors["cache"].value(cpu).array.sum() == 0


def test_who_ran_a_call(fakes, watch, cpu):
    """The one that took it, also where others declined or raised, and where nobody did."""

    def broken(out, a, b, /):
        msg = "broken"
        raise RuntimeError(msg)

    device = fakes.device(
        fakes.impl(plugin="picky", priority=3, supports=lambda *_: "never"),
        fakes.impl(fn=broken, plugin="broken", priority=2),
        fakes.impl(plugin="good", priority=1),
    )
    x = on(device, 1)
    drift = watch(device)
    with drift.watching():
        ops.add(x, x)
        ops.mul(x, x)
    by = {op: cell.by for op, cell in drift.by_op().items()}
    assert by["add"] == "good (dist-good 1.0)"
    assert by["mul"].startswith("the cpu: cpu_ref (")


def test_parts_of_a_decomposition(fakes, watch):
    """The whole is judged, and each part: a wrong part is named, and not the whole for it."""
    device = fakes.device()
    spec = ops.catalogue()["silu_mul"]
    parts = {part.name for part in spec.decomposition.parts(dtypes.f32)}
    assert parts == {"silu", "mul"}

    def silu(out, x, /):
        view = fakes.view(x)
        fakes.view(out)[...] = view / (1 + np.exp(-view)) * np.float32(1.01)

    impls = [fakes.impl("silu", silu), fakes.impl("mul", fakes.kernel(np.multiply))]
    device.table = DispatchTable(device, impls, device.table.cpu)
    x = on(device, 1, 2)
    drift = watch(device)
    with drift.watching():
        ops.silu_mul(x, x)
    found = drift.by_op()
    assert found["silu_mul"].by == "decomposed into silu, mul"
    assert {op: cell.failed for op, cell in found.items()} == {"silu_mul": 0, "silu": 1, "mul": 0}


def test_what_follows_a_wrong_call_is_not_blamed(fakes, watch):
    """It gets the truth: an op that would fail on the wrong numbers passes on the right ones."""
    huge = fakes.kernel(lambda a, b: (a + b) * np.float32(1e30))  # the next product overflows
    device = fakes.device(
        fakes.impl(fn=huge), fakes.impl("mul", fakes.kernel(lambda a, b: a * b * b / b))
    )
    x = on(device, 2, 4)
    drift = watch(device)
    with drift.watching():
        y = ops.mul(x, ops.add(x, x))
    assert {op: cell.failed for op, cell in drift.by_op().items()} == {"add": 1, "mul": 0}
    assert y.numpy().tolist() == [8, 32]


def test_a_second_culprit_is_found_too(fakes, watch):
    """Behind a wrong op another one that is wrong by itself is named beside it."""
    device = fakes.device(
        fakes.impl(fn=fakes.kernel(lambda a, b: (a + b) * np.float32(np.nan))),
        fakes.impl("mul", fakes.kernel(lambda a, b: a * b * np.float32(1.01))),
    )
    x = on(device, 2, 4)
    drift = watch(device)
    with drift.watching():
        ops.mul(x, ops.add(x, x))
    assert {op: cell.failed for op, cell in drift.by_op().items()} == {"add": 1, "mul": 1}
    saved = drift.worst["add"][1].results[0].value(device).array
    assert np.isnan(saved).all()  # what is kept is what the op gave


def test_an_op_that_failed_is_judged_each_time(fakes, watch):
    """Calls that the sample leaves out would go on with wrong numbers."""
    device = fakes.device(fakes.impl(fn=fakes.kernel(lambda a, b: a + b + 1)))
    x = on(device, 1)
    drift = watch(device, sample=0.0)
    with drift.watching():
        assert [ops.add(x, x).numpy().item() for _ in range(5)] == [2] * 5
    assert (drift.failed, drift.by_op()["add"].checked) == (5, 5)


@pytest.mark.parametrize(("sample", "least", "most"), [(0.0, 2, 2), (1.0, 202, 202), (0.1, 8, 40)])
def test_the_sample(fakes, watch, sample, least, most):
    """Of each op, layer and shape the first call is judged, of the others the share asked for."""
    device = fakes.device(fakes.impl())
    x, y = on(device, 1), on(device, 1, 2)
    drift = watch(device, sample=sample)
    with drift.watching():
        for _ in range(101):
            ops.add(x, x)
            ops.add(y, y)
    cell = drift.by_op()["add"]
    assert cell.calls == 202
    assert least <= cell.checked <= most


def test_an_op_whose_truth_nobody_knows(fakes, watch, monkeypatch):
    """It is counted, and passes for neither right nor wrong."""
    from propolis_conformance.truth import NoTruthError

    def unknown(*_):
        raise NoTruthError

    monkeypatch.setattr("propolis_conformance.drift.watch.expectation", unknown)
    device = fakes.device(fakes.impl())
    drift = watch(device)
    with drift.watching():
        ops.add(on(device, 1), on(device, 2))
    cell = drift.by_op()["add"]
    assert (cell.calls, cell.checked, cell.unknown, drift.failed) == (1, 0, 1, 0)


def test_weighted_means_are_judged_by_what_is_averaged(cpu, watch):
    """The reference's attention passes where large values cancel, and half precision does not."""
    rng = np.random.default_rng(0)
    shape = (1, 64, 2, 32)
    q, k, v = (Tensor.from_numpy(rng.normal(0, 1, shape).astype(np.float32), cpu) for _ in "qkv")
    centred = v.numpy() - v.numpy().mean(1, keepdims=True)
    v = Tensor.from_numpy(np.float32(100 * centred), cpu)
    drift = watch(cpu)
    with drift.watching():
        y = ops.attention(q, k, v)
    assert drift.failed == 0
    call = drift.worst["attention"][1]
    from propolis_conformance.drift.measure import expectation

    truth = expectation(call, drift.oracle)
    half = ops.attention(q, k, ops.cast(ops.cast(v, dtypes.f16), dtypes.f32)).numpy()
    assert np.abs(y.numpy() - truth.outputs[0]).max() < np.abs(half - truth.outputs[0]).max()
    given = (truth.outputs[0], dtypes.f32, truth.magnitudes[0])
    assert measure(ops.attention, y.numpy(), *given).passed
    assert not measure(ops.attention, half, *given).passed


@pytest.mark.parametrize("exact", [True, False])
def test_what_says_that_it_rounds_is_judged_by_the_suites_rule(fakes, watch, exact):
    """A product of 8-bit activations passes where its implementation says so, and fails else."""

    def rounded(out, a, b, /):
        scale = np.abs(fakes.view(a)).max() / 127
        fakes.view(out)[...] = (np.rint(fakes.view(a) / scale) * scale) @ fakes.view(b)

    device = fakes.device(fakes.impl("matmul", rounded, exact=exact))
    rng = np.random.default_rng(0)
    a, b = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((3, 64), (64, 5)))
    drift = watch(device)
    with drift.watching():
        ops.matmul(Tensor.from_numpy(a, device), Tensor.from_numpy(b, device))
    assert drift.failed == (1 if exact else 0)
    call = drift.worst["matmul"][1]
    assert (call.exact, call.facts["exact"]) == (exact, int(exact))
