from __future__ import annotations

import threading

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import Tensor
from propolis import ops
from propolis.config import Config
from propolis.errors import DeviceError
from propolis.errors import DeviceNotFoundError
from propolis.errors import FallbackError
from propolis.errors import OutOfMemoryError
from propolis.errors import PluginError
from propolis.runtime import Runtime
from propolis.runtime import default_runtime
from propolis.runtime import set_default_runtime


pytestmark = pytest.mark.usefixtures("unvetted")


def start(**settings):
    """A runtime with those settings."""
    return Runtime.start(Config.load(**settings))


def report(runtime, name):
    """(status, stage, reason) of a plugin."""
    (found,) = [r for r in runtime.plugins.reports if r.candidate.name == name]
    return found.status, found.stage, found.reason


def ones(device):
    """Two ones."""
    return Tensor.from_numpy(np.ones(2, np.float32), device)


# -- taking ops over -----------------------------------------------------------


def test_a_plugin_takes_an_op_over(site, sources):
    """The higher priority serves what it declares; the reference serves the rest."""
    site.plugin("fast", sources.fast_add)
    cpu = start().cpu
    assert ops.add(ones(cpu), ones(cpu)).numpy().tolist() == [3, 3]
    assert ops.mul(ones(cpu), ones(cpu)).numpy().tolist() == [1, 1]
    half = Tensor.from_numpy(np.ones(2, np.float16), cpu)
    assert ops.add(half, half).numpy().tolist() == [2, 2]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("OpImpl(op='addd', fn=add, dtypes={dtypes.f32})", "'addd', which is no op; did you mean"),
        ("OpImpl(op='add', fn=max, dtypes={dtypes.f32})", "add: its function"),
        ("'add'", "propolis_ops gave a str, not an OpImpl"),
    ],
)
def test_one_bad_implementation_rejects_the_plugin(site, sources, item, reason):
    """None of its ops serves, also those that came first; the reference goes on."""
    site.plugin("fast", sources.fast_add + f"    yield {item}\n")
    runtime = start()
    assert ops.add(ones(runtime.cpu), ones(runtime.cpu)).numpy().tolist() == [2, 2]
    status, stage, why = report(runtime, "fast")
    assert (status, stage) == ("rejected", "hooks")
    assert reason in why


def test_strict_holds_for_contracts(site, sources):
    """An implementation against its contract is fatal when strict."""
    site.plugin("fast", sources.fast_add + "    yield 3\n")
    with pytest.raises(PluginError, match=r"plugin fast .*gave a int, not an OpImpl"):
        start(strict=True)


def test_threads_of_the_config():
    """0 is what the machine has."""
    assert start(threads=3).cpu.threads == 3
    assert start().cpu.threads >= 1


# -- devices -------------------------------------------------------------------


def test_a_plugins_device(site, sources):
    """It is listed, opened once, by its name, and falls back to the CPU for every op."""
    site.plugin("toy", sources.toy_device)
    runtime = start(fallback="allow")
    assert [p.id for p in runtime.devices()] == ["cpu", "toy:0"]
    device = runtime.device("toy:0")
    assert runtime.device("toy") is device
    assert runtime.device("toy:0") is device
    assert runtime.device("cpu") is runtime.device("cpu:0") is runtime.cpu
    assert repr(device) == "<Device toy:0 Toy One (toy1)>"
    x = device.empty((2,), ones(runtime.cpu).dtype)
    x.assign(np.ones(2, np.float32))
    ops.add(x, x)
    assert list(runtime.fallbacks.tallies) == [("add", "no plugin implements add for toy:0")]


def test_a_device_by_whatever_names_it(site, sources):
    """An open device is itself, none is the settings', and what is neither is refused."""
    site.plugin("toy", sources.toy_device)
    runtime = start(device="toy:0")
    device = runtime.device()
    assert device.id == "toy:0"
    assert runtime.device(device) is device
    assert runtime.device(None) is device
    with pytest.raises(TypeError, match=r"device is 0; supported: an id \(cpu, rocm:0\) or an op"):
        runtime.device(0)


def test_fallback_is_the_configs(site, sources):
    """``error`` refuses on every device of the runtime."""
    site.plugin("toy", sources.toy_device)
    device = start(fallback="error").device("toy")
    x = device.empty((2,), ones(start().cpu).dtype)
    with pytest.raises(FallbackError, match="instead of toy:0"):
        ops.add(x, x)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("toy:1", r"present: cpu, toy:0; did you mean toy:0\?"),
        ("toyy", r"present: cpu, toy:0; did you mean toy:0\?"),
        ("toy:x", "no device 'toy:x'; present"),
        ("cpu:1", "no device 'cpu:1'; present"),
        ("quantum", "`propolis doctor` finds out why"),
        ("", "no device ''; present: cpu, toy:0"),
    ],
)
def test_devices_that_are_not_there(site, sources, name, hint):
    """The error lists those there are, and a near match or the way to find out."""
    site.plugin("toy", sources.toy_device)
    with pytest.raises(DeviceNotFoundError, match=hint):
        start().device(name)


PROVIDER = """
class Provider:
    kind = "odd"
    def enumerate(self):
        {enumerate}
    def open(self, index):
        {open}
@hookimpl
def propolis_devices(config):
    yield Provider()
"""
LISTED = "return [DeviceProperties('odd', 0, 'Odd', arch='odd')]"


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        ("raise RuntimeError('driver gone')", "listing odd raised RuntimeError: driver gone"),
        ("raise SystemExit(1)", "listing odd raised SystemExit: 1"),
        ("return None", "listing odd raised TypeError: 'NoneType' object is not iterable"),
        ("return ['odd:0']", "its provider of odd listed 'odd:0'"),
        ("return [DeviceProperties('cpu', 0, 'x', arch='x')]", "its provider of odd listed Device"),
    ],
)
def test_a_provider_that_cannot_list(site, sources, listing, reason):
    """Its plugin is out; other kinds are listed and opened all the same."""
    site.plugin("odd", PROVIDER.format(enumerate=listing, open="pass"))
    site.plugin("toy", sources.toy_device)
    runtime = start()
    assert runtime.device("toy").id == "toy:0"
    status, stage, why = report(runtime, "odd")
    assert (status, stage) == ("rejected", "hooks")
    assert why.startswith(reason)
    assert [p.id for p in runtime.devices()] == ["cpu", "toy:0"]
    with pytest.raises(DeviceNotFoundError):
        runtime.device("odd")


def test_a_device_that_cannot_be_opened(site):
    """The error names the plugin, the device and the driver's words; it is no bug of ours."""
    site.plugin("odd", PROVIDER.format(enumerate=LISTED, open="raise RuntimeError('busy')"))
    with pytest.raises(
        DeviceError, match=r"^odd \(fake-odd 1\.0\) cannot open odd:0: Run.*: busy;"
    ):
        start().device("odd")


def test_a_propolis_error_on_opening_is_kept(site):
    """A plugin that raises one of ours knows better."""
    body = "from propolis.errors import OutOfMemoryError; raise OutOfMemoryError('full')"
    site.plugin("odd", PROVIDER.format(enumerate=LISTED, open=body))
    with pytest.raises(OutOfMemoryError, match=r"^full$"):
        start().device("odd")


def test_a_provider_that_opens_something_else(site):
    """What it opens must be a device."""
    site.plugin("odd", PROVIDER.format(enumerate=LISTED, open="return 7"))
    with pytest.raises(PluginError, match=r"opened odd:0 as a int, not a Device"):
        start().device("odd")


def test_a_kind_belongs_to_one_plugin(site, sources):
    """The first in order keeps it; the second loses all it provides."""
    site.plugin("toy-a", sources.toy_device)
    both = sources.toy_device.replace('"toy", 0', '"also", 0').replace('"toy"', '"also"', 1)
    site.plugin("toy-b", both + "    yield type('P', (Provider,), {'kind': 'toy'})()\n")
    runtime = start()
    assert [p.id for p in runtime.devices()] == ["cpu", "toy:0"]
    assert report(runtime, "toy_a")[0] == "loaded"
    assert report(runtime, "toy_b")[2] == "device kind 'toy' is already provided by toy_a"


def test_nobody_provides_a_cpu(site, sources):
    """The CPU is core's; a stranger's is not listed, and goes with all else it provides."""
    site.plugin("fake-cpu", sources.toy_device.replace('"toy"', '"cpu"'))
    runtime = start()
    assert [p.id for p in runtime.devices()] == ["cpu"]
    assert report(runtime, "fake_cpu")[2] == "device kind 'cpu' is provided by core"


def test_one_provider_given_twice(site, sources):
    """The same object counts once."""
    site.plugin("toy", sources.toy_device.replace("yield Provider()", "return [Provider()] * 2"))
    assert [p.id for p in start().devices()] == ["cpu", "toy:0"]


def test_something_that_is_no_provider(site, sources):
    """The hook's answer is checked, not tripped over."""
    site.plugin("bad", "@hookimpl\ndef propolis_devices(config): return ['toy']")
    site.plugin("toy", sources.toy_device)
    runtime = start()
    assert [p.id for p in runtime.devices()] == ["cpu", "toy:0"]
    assert report(runtime, "bad")[2] == "propolis_devices gave a str, not a DeviceProvider"
    with pytest.raises(PluginError, match="gave a str"):
        start(strict=True).devices()


def test_devices_are_opened_once_from_many_threads(site, sources):
    """Threads that ask at once get one device, not one each."""
    slow = sources.toy_device.replace(
        "    def open(self, index):",
        "    def open(self, index):\n        import time\n        time.sleep(0.02)",
    )
    site.plugin("toy", slow)
    runtime = start()
    found = []
    threads = [threading.Thread(target=lambda: found.append(runtime.device("toy"))) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


# -- storage -------------------------------------------------------------------

STORAGE = """
from propolis.cpu import CpuMemory
class {name}(CpuMemory):
    pass
@hookimpl
def propolis_storage(device):
    return {answer}
"""


def test_another_allocator(site, sources):
    """The first plugin in order gives the memory; a second is reported, not ignored in silence."""
    site.plugin("toy", sources.toy_device)
    site.plugin("a", STORAGE.format(name="First", answer="None"))
    site.plugin("b", STORAGE.format(name="Second", answer="Second()"))
    site.plugin("c", STORAGE.format(name="Third", answer="Third()"))
    with capture_logs() as logs:
        device = start().device("toy")
    assert type(device.memory).__name__ == "Second"
    (line,) = [line for line in logs if line["event"] == "device.memory_ignored"]
    assert (line["plugin"], line["taken_from"], line["device"]) == ("c", "b", "toy:0")


def test_an_allocator_that_is_none(site, sources):
    """What the hook gives must be a Memory; the device keeps its own."""
    site.plugin("toy", sources.toy_device)
    site.plugin("bad", STORAGE.format(name="M", answer="3"))
    runtime = start()
    assert type(runtime.device("toy").memory).__name__ == "CpuMemory"
    assert report(runtime, "bad")[2] == "propolis_storage gave a int, not a Memory"


# -- the process's runtime -----------------------------------------------------


def test_the_default_runtime_is_one():
    """Every thread gets the same; it can be replaced."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(default_runtime())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    other = start()
    set_default_runtime(other)
    assert default_runtime() is other


def test_a_failed_start_can_be_repeated(monkeypatch):
    """A wrong setting is corrected, and the next call starts."""
    from propolis.errors import ConfigError

    monkeypatch.setenv("PROPOLIS_THREADS", "many")
    with pytest.raises(ConfigError):
        default_runtime()
    monkeypatch.delenv("PROPOLIS_THREADS")
    assert default_runtime().cpu.id == "cpu"


def test_a_hook_that_uses_the_default_runtime(site):
    """It would wait for itself: it gets an error, its plugin is out, the runtime starts."""
    site.plugin(
        "eager",
        """
        from propolis import Tensor
        import numpy
        @hookimpl
        def propolis_ops(device):
            Tensor.from_numpy(numpy.zeros(2, numpy.float32))
            return []
        """,
    )
    runtime = default_runtime()
    status, stage, why = report(runtime, "eager")
    assert (status, stage) == ("rejected", "hooks")
    assert "the default runtime is starting" in why
    assert default_runtime() is runtime
