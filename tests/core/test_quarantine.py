from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import DTypeError
from propolis.errors import FallbackError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError
from propolis.runtime import Runtime
from propolis_conformance.testing import device_view


def raising(exc, calls=None):
    """An implementation that fails, after writing nonsense."""

    def run(out, a, b, /):
        if calls is not None:
            calls.append(out)
        raise exc

    return run


def on(device, *values):
    """A float32 tensor with those elements there."""
    return Tensor.from_numpy(np.float32(values), device)


@pytest.mark.parametrize(
    "exc",
    [RuntimeError("kernel failed"), SystemExit(3), PluginError("no handle")],
    ids=lambda exc: type(exc).__name__,
)
@pytest.mark.parametrize("supports", [None, lambda *_: None], ids=["always", "asked"])
def test_the_next_rung_takes_over(fakes, exc, supports):
    """The call succeeds, one event says who failed and how, and it is not asked again."""
    calls = []
    bad = fakes.impl(fn=raising(exc, calls), plugin="bad", priority=9, supports=supports)
    device = fakes.device(bad, fakes.impl())
    x = on(device, 1, 2)
    with capture_logs() as logs:
        results = [ops.add(x, x).numpy().tolist() for _ in range(3)]
    assert results == [[2, 4]] * 3
    assert len(calls) == 1
    reason = f"raised {type(exc).__name__}: {exc}"
    assert logs == [
        {
            "event": "op.quarantined",
            "log_level": "warning",
            "op": "add",
            "dtypes": "f32",
            "variant": "",
            "device": "fake:0",
            "plugin": "bad",
            "distribution": "dist-bad",
            "version": "1.0",
            "reason": reason,
        }
    ]
    assert device.table.generation == 1
    verdict = device.table.trace(ops.add, dtypes.f32).verdicts[0]
    assert verdict.status == "rejected"
    assert verdict.reason.startswith(f"quarantined: {reason}; `propolis quarantine clear`")
    assert device.table.fallbacks.total.calls == 0


def failing(times, exc, calls, then=np.add):
    """An implementation of add that fails that many times."""

    def run(out, a, b, /):
        calls.append(1)
        if len(calls) <= times:
            raise exc
        device_view(out)[...] = then(device_view(a), device_view(b))

    return run


@pytest.mark.parametrize("exc", [DeviceError("launch failed"), OutOfMemoryError("full")])
@pytest.mark.parametrize("supports", [None, lambda *_: None], ids=["always", "asked"])
def test_a_device_that_refuses_once_is_asked_again(fakes, exc, supports):
    """It does the call, one line says so, and it keeps its place."""
    calls = []
    shaky = fakes.impl(fn=failing(1, exc, calls), plugin="shaky", priority=9, supports=supports)
    device = fakes.device(shaky, fakes.impl())
    x = on(device, 1, 2)
    with capture_logs() as logs:
        assert [ops.add(x, x).numpy().tolist() for _ in range(3)] == [[2, 4]] * 3
    assert len(calls) == 4
    (line,) = logs
    assert (line["event"], line["plugin"]) == ("op.repeated", "shaky")
    assert line["reason"] == f"raised {type(exc).__name__}: {exc}"
    assert device.table.quarantine.entries == {}
    assert device.table.generation == 0


def test_a_plugins_fault_is_not_repeated(fakes):
    """A ValueError is no mood of the device."""
    calls = []
    bad = fakes.impl(fn=failing(1, ValueError("odd"), calls), plugin="bad", priority=9)
    device = fakes.device(bad, fakes.impl())
    ops.add(on(device, 1), on(device, 2))
    assert len(calls) == 1


@pytest.mark.parametrize("supports", [None, lambda *_: None], ids=["always", "asked"])
def test_a_device_that_refuses_twice_is_out_for_this_process(fakes, supports):
    """Another rung takes over, without flapping; the next process asks again."""
    calls, kept = [], []
    shaky = fakes.impl(
        fn=failing(2, DeviceError("launch failed"), calls),
        plugin="shaky",
        priority=9,
        supports=supports,
    )
    device = fakes.device(shaky, fakes.impl())
    device.table.quarantine.keep = kept.append
    x = on(device, 1, 2)
    for _ in range(3):
        assert ops.add(x, x).numpy().tolist() == [2, 4]
    assert len(calls) == 2
    assert len(device.table.quarantine.entries) == 1
    assert kept == []


def test_a_call_that_cannot_be_repeated_is_an_error_once(fakes):
    """Over what may be half written nobody goes again: the caller knows, and the op stays."""
    calls = []
    shaky = fakes.impl(
        fn=failing(1, DeviceError("launch failed"), calls), in_place=True, plugin="shaky"
    )
    device = fakes.device(shaky)
    x = on(device, 1, 2)
    with pytest.raises(PluginError, match=r"launch failed .*it is asked again for the next one"):
        ops.add.into(x, x, x)
    assert device.table.quarantine.entries == {}
    assert ops.add.into(x, x, x).numpy().tolist() == [2, 4]


def test_a_call_that_cannot_be_repeated_fails_at_most_twice(fakes):
    """Then others serve the next one: in this process, as it is the device's own error."""
    calls, kept = [], []
    shaky = fakes.impl(fn=failing(9, DeviceError("no"), calls), in_place=True, plugin="shaky")
    device = fakes.device(shaky)
    device.table.quarantine.keep = kept.append
    x = on(device, 1, 2)
    for then in ("it is asked again", "others serve"):
        with pytest.raises(PluginError, match=then):
            ops.add.into(x, x, x)
    assert ops.add.into(x, x, x).numpy().tolist() == [2, 4]
    assert (len(calls), kept) == (2, [])


def test_leaving_is_a_fault(fakes):
    """Where nobody can take over from an op that calls sys.exit, the caller gets an error."""
    device = fakes.device(fakes.impl(fn=raising(SystemExit(3))), policy="error")
    with pytest.raises(FallbackError, match="raised SystemExit: 3"):
        ops.add(on(device, 1), on(device, 2))
    alone = fakes.impl("kv_append", raising(SystemExit(3)))
    device = fakes.device(alone)
    device.table.cpu.table = DispatchTable(device.table.cpu, [], device.table.cpu)
    cache, x = (Tensor.from_numpy(np.ones((1, 1, 1, 1), np.float32), device) for _ in range(2))
    positions = Tensor.from_numpy(np.zeros((1, 1), np.int32), device)
    with pytest.raises(PluginError, match=r"kv_append: fake .* raised SystemExit: 3"):
        ops.kv_append(cache, x, positions)


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("9 TB")], ids=repr)
def test_no_memory_is_an_error_of_ours(fakes, error):
    """What numpy raises where there is none names the op and the plugin, and takes nobody out."""
    device = fakes.device(fakes.impl(fn=raising(error)), policy="error")
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=r"add: fake .* raised MemoryError") as found:
            ops.add(on(device, 1), on(device, 2))
        assert found.value.__cause__ is error


def test_a_weight_that_a_device_refuses_to_prepare_once(fakes):
    """It is asked again, and keeps its place."""
    from propolis import Prepared

    calls = []

    def prepare(_weight):
        calls.append(1)
        if len(calls) == 1:
            msg = "launch failed"
            raise DeviceError(msg)
        return Prepared("form", 1, "a form")

    def linear(out, x, w, bias=None, /):
        """Never run."""

    device = fakes.device(fakes.impl("linear", linear, prepare=prepare))
    weight = Tensor.from_numpy(np.ones((2, 2), np.float32), device)
    with capture_logs() as logs:
        ready = device.table.prepare(ops.linear, ops.linear.key(dtypes.f32), weight)
    assert dict(ready.prepared) == {prepare: "form"}
    assert [line["event"] for line in logs] == ["op.repeated"]
    assert device.table.quarantine.entries == {}


def test_the_cpu_takes_over(fakes):
    """It counts as any fallback, with what was raised as the reason."""
    device = fakes.device(fakes.impl(fn=raising(ValueError("odd"))))
    assert ops.add(on(device, 1), on(device, 2)).numpy().tolist() == [3]
    (((_, reason), _),) = device.table.fallbacks.tallies.items()
    assert reason == "fake (dist-fake 1.0): raised ValueError: odd"


def test_the_policy_holds(fakes):
    """Where the CPU is forbidden, the error names what was raised and nobody is condemned."""
    device = fakes.device(fakes.impl(fn=raising(ValueError("odd"))), policy="error")
    with pytest.raises(FallbackError, match=r"raised ValueError: odd") as caught:
        ops.add(on(device, 1), on(device, 2))
    assert isinstance(caught.value.__cause__, ValueError)
    assert device.table.quarantine.entries == {}


def test_data_that_nobody_can_run_condemns_nobody(fakes, cpu):
    """The first error is the caller's to see; the implementations stay."""
    first, second = ValueError("first"), ValueError("second")
    impls = [
        fakes.impl(fn=raising(e), plugin=p, priority=q, device="cpu")
        for e, p, q in ((first, "a", 2), (second, "b", 1))
    ]
    cpu.table = DispatchTable(cpu, impls, cpu)
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            ops.add(on(cpu, 1), on(cpu, 2))
    assert cpu.table.quarantine.entries == {}


@pytest.mark.parametrize(
    "exc", [OutOfMemoryError("full"), DTypeError("the user's"), KeyboardInterrupt()]
)
def test_errors_that_are_no_fault(fakes, exc):
    """Memory, the user's data and the user's patience pass through unchanged."""
    device = fakes.device(fakes.impl(fn=raising(exc)))
    for _ in range(2):
        with pytest.raises(type(exc)) as caught:
            ops.add(on(device, 1), on(device, 2))
        assert caught.value is exc
    assert device.table.quarantine.entries == {}


@pytest.mark.parametrize("supports", [None, lambda *_: None], ids=["always", "asked"])
def test_the_reference_stays(fakes, cpu, supports):
    """What says what is right is not replaced by others; its errors are seen."""
    broken = fakes.impl(fn=raising(ValueError("bug")), plugin="cpu_ref", device="cpu", priority=9)
    other = fakes.impl(device="cpu")
    cpu.table = DispatchTable(cpu, [dataclasses.replace(broken, supports=supports), other], cpu)
    with pytest.raises(ValueError, match="bug"):
        ops.add(on(cpu, 1), on(cpu, 2))
    assert cpu.table.quarantine.entries == {}


def test_a_destination_that_is_an_input(fakes):
    """The call cannot be repeated over what may be half written: an error, then the others."""
    device = fakes.device(fakes.impl(fn=raising(RuntimeError("half way")), in_place=True))
    x = on(device, 1, 2)
    with pytest.raises(PluginError, match="may have overwritten its inputs"):
        ops.add.into(x, x, x)
    assert ops.add(x, x).numpy().tolist() == [2, 4]


def test_an_op_that_mutates(fakes):
    """As above, for ops that write into an argument; a supports() that fails wrote nothing."""

    def append(cache, x, positions, /):
        msg = "half way"
        raise RuntimeError(msg)

    def supports(*_):
        msg = "cannot say"
        raise RuntimeError(msg)

    at = np.array([[0]], np.int32)
    for fields, raises in (({}, True), ({"supports": supports}, False)):
        device = fakes.device(fakes.impl("kv_append", append, **fields))
        cache, x = (Tensor.from_numpy(np.full((1, 1, 1, 1), v, np.float32), device) for v in (0, 7))
        positions = Tensor.from_numpy(at, device)
        if raises:
            with pytest.raises(PluginError, match="others serve the next one"):
                ops.kv_append(cache, x, positions)
        ops.kv_append(cache, x, positions)
        assert cache.numpy().item() == 7


def test_a_captured_graph_follows(fakes):
    """What was recorded before an implementation failed goes to the next rung in replays."""
    healthy = [True]
    calls = []

    def moody(out, a, b, /):
        calls.append(1)
        if not healthy[0]:
            msg = "moody"
            raise RuntimeError(msg)
        fakes.view(out)[...] = fakes.view(a) + fakes.view(b)

    device = fakes.device(fakes.impl(fn=moody, plugin="moody", priority=1), fakes.impl())
    x = on(device, 1, 2)
    with capture(device) as graph:
        y = ops.add(x, x)
    healthy[0] = False
    x.assign(np.float32([3, 4]))
    for _ in range(3):
        graph.replay()
    assert y.numpy().tolist() == [6, 8]
    assert len(calls) == 2


def test_a_lost_device(fakes):
    """Every later call raises at once, of other ops and of captured graphs too."""
    calls = []
    device = fakes.device(
        fakes.impl("mul", fakes.kernel(np.multiply)),
        fakes.impl(fn=raising(DeviceLostError("hang"), calls)),
    )
    x = on(device, 1, 2)
    with capture(device) as graph:
        ops.mul(x, x)
    with pytest.raises(DeviceLostError, match=r"^hang$"):
        ops.add(x, x)
    for call in (lambda: ops.add(x, x), lambda: ops.mul(x, x), graph.replay):
        with pytest.raises(DeviceLostError, match="fake:0 is lost: hang; only a new process"):
            call()
    assert len(calls) == 1
    assert device.table.quarantine.entries == {}


def test_other_dtypes_stay(fakes):
    """They are other kernels; what raised is out for its own dtypes alone."""
    plain = fakes.kernel(np.add)
    calls = []

    def no_f16(out, a, b, /):
        calls.append(a.dtype.name)
        if a.dtype is dtypes.f16:
            msg = "no such kernel"
            raise RuntimeError(msg)
        plain(out, a, b)

    device = fakes.device(fakes.impl(fn=no_f16, plugin="half", priority=9), fakes.impl())
    f16, f32 = (Tensor.from_numpy(np.ones(2, t), device) for t in (np.float16, np.float32))
    for _ in range(2):
        assert ops.add(f16, f16).numpy().tolist() == [2, 2]
        assert ops.add(f32, f32).numpy().tolist() == [2, 2]
    assert calls == ["f16", "f32", "f32"]
    (entry,) = device.table.quarantine.entries.values()
    assert (entry.op, entry.dtypes, entry.label) == ("add", ("f16",), "add (f16)")


def test_other_shapes_go_with_it_but_not_other_variants(fakes):
    """A kernel for each head size, each its own variant: one fails, its shapes alone move on."""
    plain = fakes.kernel(np.add)

    def kernel(size, broken):
        def run(out, a, b, /):
            calls.append((size, a.shape[0]))
            if broken:
                msg = "misaligned"
                raise RuntimeError(msg)
            plain(out, a, b)

        def supports(a, b, /):
            return None if a.shape[-1] == size else f"width {a.shape[-1]} is not {size}"

        fields = {"plugin": "heads", "priority": 9, "variant": f"hd{size}", "supports": supports}
        return fakes.impl(fn=run, **fields)

    calls = []
    device = fakes.device(kernel(64, broken=False), kernel(96, broken=True), fakes.impl())
    for rows, size in ((1, 64), (1, 96), (2, 96), (2, 64)):
        x = Tensor.from_numpy(np.ones((rows, size), np.float32), device)
        assert (ops.add(x, x).numpy() == 2).all()
    assert calls == [(64, 1), (96, 1), (64, 2)]
    (entry,) = device.table.quarantine.entries.values()
    assert (entry.variant, entry.label) == ("hd96", "add (f32) hd96")


BROKEN = """
def add(out, a, b, /):
    raise RuntimeError("kernel failed")
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="add", fn=add, dtypes={dtypes.f32}, priority=100)
"""


@pytest.mark.usefixtures("unvetted")
def test_it_lasts_until_the_plugin_changes(cli, site):
    """Later processes leave it out; another version, or clearing it, lets it back."""
    assert cli("quarantine", "list").out == "nothing is quarantined\n"
    site.plugin("broken", BROKEN)
    cpu = Runtime.start(Config.load()).cpu
    ops.add(on(cpu, 1), on(cpu, 2))
    assert "rejected: broken (fake-broken 1.0): quarantined: raised" in cli("explain", "add").out
    (entry,) = json.loads(cli("quarantine", "list", "--json").out)
    assert (entry["op"], entry["dtypes"], entry["kind"]) == ("add", ["f32"], "cpu")
    assert entry["source"]["plugin"] == "broken"
    assert "RuntimeError: kernel failed" in cli("quarantine", "list").out
    site.module("fake_broken", (site.folder / "fake_broken.py").read_text() + "# better\n")
    assert "winner: broken" in cli("explain", "add").out
    assert cli("quarantine", "clear", "--op", "mul").out == "nothing to let back\n"
    said = cli("quarantine", "clear", "--op", "sillu").out
    assert said == "nothing to let back: there is no op 'sillu'; did you mean silu?\n"
    assert cli("quarantine", "clear", "--plugin", "Broken", "--op", "add").out.startswith(
        "let back: add (f32) of broken (fake-broken 1.0) on cpu"
    )
    assert json.loads(cli("quarantine", "list", "--json").out) == []


@pytest.mark.usefixtures("unvetted")
@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"op": "add"}]', "\0"])
def test_a_damaged_file_is_an_empty_one(cli, site, content):
    """Reading goes on, and the next entry replaces it."""
    site.plugin("broken", BROKEN)
    file = Config.load().cache_dir / "quarantine.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    cpu = Runtime.start(Config.load()).cpu
    ops.add(on(cpu, 1), on(cpu, 2))
    assert len(json.loads(file.read_text())) == 1


@pytest.mark.usefixtures("unvetted")
def test_a_cache_folder_that_cannot_be_written(site, tmp_path):
    """It holds for this process, and the call succeeds."""
    site.plugin("broken", BROKEN)
    (tmp_path / "file").write_text("")
    cpu = Runtime.start(Config.load(cache_dir=tmp_path / "file")).cpu
    assert ops.add(on(cpu, 1), on(cpu, 2)).numpy().tolist() == [3]
    assert len(cpu.table.quarantine.entries) == 1


def test_clearing_what_cannot_be_written(cli, monkeypatch):
    """An error in one line, with the file."""
    file = Config.load().cache_dir / "quarantine.json"
    file.parent.mkdir(parents=True)
    source = {"plugin": "p", "distribution": "d", "version": "1"}
    entry = {"source": source, "op": "add", "variant": "", "dtypes": ["f32"]}
    entry |= {"kind": "cpu", "arch": "x", "reason": "r", "key": "k"}
    file.write_text(json.dumps([entry]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("propolis.plugins.quarantine_file.replace_json", full)
    done = cli("quarantine", "clear")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert str(file) in done.err


def test_listing_imports_no_plugin(cli, site):
    """Not even one that would end the process."""
    site.plugin("deadly", "import os; os._exit(3)")
    assert cli("quarantine", "list").code == 0
