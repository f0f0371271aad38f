"""Mistakes that whoever writes a plugin makes: each is told, none is passed over."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import CheckResult
from propolis import DoctorCheck
from propolis import OpImpl
from propolis import Provenance
from propolis import Tensor
from propolis import dtypes
from propolis import hookimpl
from propolis import ops
from propolis.doctor import _run
from propolis.doctor import _run_all
from propolis.errors import PluginError
from propolis.plugins.contract import check_impls
from propolis.plugins.contract import hook_problems


SOURCE = Provenance("fake", "fake-dist", "1.0")


def add(out, a, b, /):
    """The shape of an add."""


def made(**fields):
    """An implementation of add, with those fields instead."""
    return OpImpl(**{"op": "add", "fn": add, "dtypes": {dtypes.f32}, **fields})


class Bare:
    """A plugin that forgot to decorate one of its hooks."""

    @hookimpl
    def propolis_plugin(self):
        """A hook."""

    def propolis_ops(self, device):
        """None, though it has the name of one."""


def test_a_hook_that_is_not_decorated():
    """Nobody would call it, so the plugin is refused, and told of the decorator."""
    (said,) = hook_problems("bare", Bare(), ["propolis_plugin"])
    assert said == "propolis_ops would never be called: decorate it with propolis.hookimpl"


def test_two_implementations_that_nobody_can_tell_apart():
    """For the same op, dtypes and device a plugin's kernels have variants."""
    both = [made(), made(dtypes={"a": {dtypes.f16, dtypes.f32}})]
    with pytest.raises(PluginError, match="two implementations for f32 on cpu have the variant ''"):
        check_impls(both, SOURCE)
    apart = [made(dtypes={dtypes.f16}), made(device="fake"), made(variant="other")]
    assert len(check_impls([made(), *apart], SOURCE)) == 4
    for_cards = [made(archs=archs) for archs in (frozenset({"gfx942"}), ["gfx1100", "gfx1201"])]
    assert len(check_impls(for_cards, SOURCE)) == 2
    with pytest.raises(PluginError, match="two implementations for f32"):
        check_impls([*for_cards, made(archs={"gfx1201", "gfx90a"})], SOURCE)


def test_a_parameter_that_dtypes_leave_out():
    """It means all of the op's, for which two implementations are alike too."""

    def qmatmul(out, x, w, /):
        """The shape of a product."""

    both = [made(op="qmatmul", fn=qmatmul, dtypes={"w": {dtypes.q4_0}})] * 2
    with pytest.raises(PluginError, match=r"qmatmul: two implementations for \w+, q4_0"):
        check_impls(both, SOURCE)


def test_a_signature_is_told_without_what_the_op_returns():
    """An implementation writes into its destination: who returned an array would be ignored."""
    with pytest.raises(
        PluginError, match=r"needs \(out, a: 'Tensor', b: 'Tensor', /\), and writes"
    ):
        check_impls([made(fn=lambda _out, _a, /: None)], SOURCE)


def test_a_refusal_without_a_reason(fakes):
    """An empty string is neither a reason nor None: the plugin is at fault, and the next serves."""
    first = fakes.impl(plugin="terse", priority=300, supports=lambda *_: "")
    device = fakes.device(first, fakes.impl(plugin="sound"))
    x = Tensor.from_numpy(np.ones(2, np.float32), device)
    with capture_logs() as logs:
        assert ops.add(x, x).numpy().tolist() == [2, 2]
    (entry,) = [log for log in logs if log["event"] == "op.quarantined"]
    assert "returned ''; say why, or None" in entry["reason"]


@pytest.mark.parametrize("into", [False, True])
def test_an_op_that_calls_itself(fakes, into):
    """It is taken out with a log line, though the stack had no room left where it failed."""

    def again(out, a, b, /):
        if into:
            ops.add.into(out, a, b)
        else:
            total = ops.add(a, b)
            fakes.view(out)[...] = fakes.view(total)

    device = fakes.device(fakes.impl(fn=again, plugin="again", priority=300), fakes.impl())
    x = Tensor.from_numpy(np.ones(2, np.float32), device)
    with capture_logs() as logs:
        assert ops.add(x, x).numpy().tolist() == [2, 2]
    entries = [log for log in logs if log["event"] == "op.quarantined"]
    assert [entry["plugin"] for entry in entries] == ["again"]
    assert "RecursionError" in entries[0]["reason"]
    assert [entry.source.plugin for entry in device.table.quarantine.entries.values()] == ["again"]


def test_what_doctor_says_of_checks_that_break_their_contract():
    """A status that there is none of, no remedy, and a name that is not the plugin's."""
    found = _run(DoctorCheck("mine.a", lambda: CheckResult("warn", "fine")), "mine")
    assert "status is 'warn'; supported: ok, warning" in found.result.summary
    found = _run(DoctorCheck("cache", lambda: CheckResult("error", "no remedy")), "mine")
    assert found.name == "mine.cache"
    assert "ask the plugin's author" in found.result.remedy
    hung = threading.Event()
    late = [DoctorCheck("cache", hung.wait), DoctorCheck("mine.other", hung.wait)]
    assert [found.name for found in _run_all(late, "mine", 0.05)] == ["mine.cache", "mine.other"]
    hung.set()
    found = _run(DoctorCheck("mine", lambda: CheckResult("ok", "well")), "mine")
    assert (found.name, found.result.remedy) == ("mine", "")
