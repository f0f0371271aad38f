import struct
import threading
import time

import numpy as np
import pytest
import structlog

from propolis import Config
from propolis import Tensor
from propolis import dtypes
from propolis.errors import DeviceError
from propolis.errors import PluginError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import rtc
from propolis_rocm_hip.cache import CodeCache
from propolis_rocm_hip.codeobject import CodeObjectError
from propolis_rocm_hip.modules import ModuleSource
from propolis_rocm_hip.modules import ModuleStore


ONE = (1, 1, 1)


def upload(device, array):
    """A tensor on the device."""
    return Tensor.from_numpy(np.asarray(array), device)


# -- launching ------------------------------------------------------------------------


def test_a_launch(device, kernels):
    """Arguments are given as numbers; the kernel finds them where C puts them."""
    x = upload(device, np.arange(10, dtype=np.float32))
    y = device.empty((10,), dtypes.f32)
    device.modules.function(kernels, "scale")(ONE, (64, 1, 1), 0, y.ptr, x.ptr, 10, 3.0)
    assert y.numpy().tolist() == [3.0 * n for n in range(10)]


def test_arguments_that_are_packed_already(device, kernels):
    """The same, from any buffer of the right size."""
    x = upload(device, np.arange(10, dtype=np.float32))
    y = device.empty((10,), dtypes.f32)
    scale = device.modules.function(kernels, "scale")
    packed = bytearray(scale.struct.size)
    scale.struct.pack_into(packed, 0, y.ptr, x.ptr, 10, 2.0)
    for buffer in (packed, bytes(packed), memoryview(packed)):
        scale.launch(ONE, (64, 1, 1), 0, buffer)
        assert y.numpy().tolist() == [2.0 * n for n in range(10)]


def test_a_struct_by_value(device, kernels):
    """Strides travel in the arguments: no allocation, no copy."""
    x = upload(device, np.arange(12, dtype=np.float32).reshape(4, 3))
    y = device.empty((4,), dtypes.f32)
    strided = (4, 3, *[0] * 4, 3, 1, *[0] * 4, 2, 0)
    gather = device.modules.function(kernels, "gather")
    gather(ONE, (64, 1, 1), 0, y.ptr, x.ptr, *strided, 2)
    assert y.numpy().tolist() == [2, 5, 8, 11]


def test_a_kernel_without_arguments(device, kernels):
    """Nothing to pack is no special case."""
    device.modules.function(kernels, "nothing")(ONE, ONE, 0)
    device.modules.function(kernels, "nothing").launch(ONE, ONE, 0, b"")
    device.synchronize()


@pytest.mark.parametrize(
    ("grid", "block"), [((0, 1, 1), ONE), (ONE, (2048, 1, 1)), (ONE, (32, 32, 2))]
)
def test_a_launch_that_is_too_large(device, kernels, grid, block):
    """The kernel, its grid and its block are in the message; the device goes on."""
    nothing = device.modules.function(kernels, "nothing")
    with pytest.raises(DeviceError) as caught:
        nothing(grid, block, 0)
    assert f"rocm:0: launch of nothing (grid {grid}, block {block}): hipError" in str(caught.value)
    nothing(ONE, ONE, 0)
    device.synchronize()


def test_arguments_that_do_not_fit(device, kernels):
    """Too few, too many, or of another kind: nothing is launched."""
    scale = device.modules.function(kernels, "scale")
    for arguments in ((1, 2, 3), (1, 2, 3, 4.0, 5), (1, 2, "three", 4.0)):
        with pytest.raises(struct.error):
            scale(ONE, ONE, 0, *arguments)
    with pytest.raises(ValueError, match="different"):
        scale.launch(ONE, ONE, 0, bytes(27))


def test_a_signature_of_the_wrong_size(device, kernels):
    """The simulator checks what AMD's metadata would say: argument bytes that the kernel lacks."""
    wrong = ModuleSource("wrong", {"scale": "PPqfq"}, source=kernels.source, flags=kernels.flags)
    scale = device.modules.function(wrong, "scale")
    with pytest.raises(DeviceError, match="launch of scale"):
        scale(ONE, ONE, 0, 1, 2, 3, 4.0, 5)


# -- loading --------------------------------------------------------------------------


def test_a_function_is_found_once(device, kernels):
    """The second call gives the same object; its module is loaded once."""
    assert device.modules.function(kernels, "scale") is device.modules.function(kernels, "scale")
    assert device.modules.loaded["kernels"] == "compiled by hipRTC for hipsim32"


def test_a_kernel_that_nobody_declared(device, kernels):
    """A plugin's mistake is said to be one."""
    with pytest.raises(PluginError, match="module kernels declares no kernel 'scael'"):
        device.modules.function(kernels, "scael")


def test_a_kernel_that_the_code_lacks(device, kernels):
    """HIP's error, with the remedy."""
    wrong = ModuleSource("wrong", {"gone": "P"}, source=kernels.source, flags=kernels.flags)
    with pytest.raises(DeviceError, match=r"hipModuleGetFunction: .*; the code object lacks the"):
        device.modules.function(wrong, "gone")


@pytest.fixture
def store(device, tmp_path):
    """A second store on the same device, with an empty cache."""
    return ModuleStore(device.context, "hipsim32", 32, CodeCache(tmp_path / "kernels"))


def test_what_was_compiled_is_found_again(store, device, kernels, monkeypatch):
    """A second process compiles nothing."""
    compiled = []
    real = rtc.compile_program

    def count(program):
        compiled.append(program.name)
        return real(program)

    monkeypatch.setattr(rtc, "compile_program", count)
    store.function(kernels, "scale")
    store.function(kernels, "gather")
    again = ModuleStore(device.context, "hipsim32", 32, store._cache)
    again.function(kernels, "scale")(ONE, ONE, 0, 0, 0, 0, 1.0)
    device.synchronize()
    assert compiled == ["kernels"]


def test_a_source_that_does_not_compile(store, monkeypatch):
    """The compiler's first error reaches the caller, and it is not asked twice."""
    bad = ModuleSource("bad", {"k": ""}, source=lambda: "extern __global__ void k() { return 1 }")
    with pytest.raises(rtc.CompileError, match="hipRTC: bad for hipsim32") as caught:
        store.function(bad, "k")
    assert "error" in caught.value.log
    monkeypatch.setattr(rtc, "compile_program", None)
    with pytest.raises(rtc.CompileError, match="hipRTC: bad for hipsim32"):
        store.function(bad, "k")


def test_code_that_was_built_for_the_device_goes_first(store, kernels, device, monkeypatch):
    """What was shipped for the architecture is loaded, and nothing is compiled."""
    program = rtc.Program(
        "kernels", kernels.source(), {}, (*kernels.flags, "-DPROPOLIS_WARP=32"), "hipsim32"
    )
    image = rtc.compile_program(program)
    monkeypatch.setattr(rtc, "compile_program", None)
    shipped = ModuleSource(
        "shipped", kernels.signatures, code={"gfx1100": None, "hipsim32": lambda: image}
    )
    y = upload(device, np.zeros(1, np.int32))
    store.function(shipped, "warp")(ONE, ONE, 0, y.ptr)
    assert y.item() == 32007
    assert store.loaded == {"shipped": "built for hipsim32"}


def test_no_code_and_no_source(store):
    """What there is, and for which architectures, is in the message."""
    source = ModuleSource("amd", {"k": ""}, code={"gfx1100": bytes, "gfx90a": bytes})
    with pytest.raises(CodeObjectError) as caught:
        store.function(source, "k")
    assert str(caught.value) == (
        "amd has no code object for hipsim32, and no source to compile; it is built for gfx1100, "
        "gfx90a"
    )


def test_a_generic_target_serves(device, tmp_path):
    """Where a code object covers the GPU's family it is taken; the error names it where none is."""
    store = ModuleStore(device.context, "gfx1151", 32, CodeCache(tmp_path))
    asked = []

    def read():
        asked.append("gfx11-generic")
        return b"no code"

    source = ModuleSource("m", {"k": ""}, code={"gfx11-generic": read, "gfx1100": None})
    with pytest.raises(CodeObjectError, match="no 64-bit ELF file"):
        store.function(source, "k")
    assert asked == ["gfx11-generic"]
    with pytest.raises(CodeObjectError, match="for gfx1151 nor for gfx11-generic, which covers"):
        store.function(ModuleSource("n", {"k": ""}, code={"gfx1100": bytes}), "k")


def test_threads_load_a_module_once(store, kernels, monkeypatch):
    """Of threads that want the same module one loads it."""
    loads = []
    real = _ffi.call

    def call(device, name, *args):
        loads.append(name)
        return real(device, name, *args)

    monkeypatch.setattr(_ffi, "call", call)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.function(kernels, "scale")))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert loads.count("hipModuleLoadData") == 1


def test_unloading(store, kernels, device):
    """A module that was given back is loaded again when it is wanted."""
    first = store.function(kernels, "nothing")
    first(ONE, ONE, 0)
    store.unload(kernels)
    assert store.loaded == {}
    store.unload(kernels)
    second = store.function(kernels, "nothing")
    assert second is not first
    second(ONE, ONE, 0)
    device.synchronize()


# -- graphs ---------------------------------------------------------------------------


def chain(device, kernels):
    """Three launches that depend on each other: y = 2 * x, y = 3 * y, z = y * 1."""
    x = upload(device, np.arange(10, dtype=np.float32))
    y, z = device.empty((10,), dtypes.f32), device.empty((10,), dtypes.f32)
    scale = device.modules.function(kernels, "scale")
    block = (64, 1, 1)
    calls = [
        lambda: scale(ONE, block, 0, y.ptr, x.ptr, 10, 2.0),
        lambda: scale(ONE, block, 0, y.ptr, y.ptr, 10, 3.0),
        lambda: scale(ONE, block, 0, z.ptr, y.ptr, 10, 1.0),
    ]
    return x, z, calls


def test_a_graph_does_what_its_calls_do(device, kernels):
    """In their order, over the tensors as they are at each replay; recording runs nothing."""
    x, z, calls = chain(device, kernels)
    z.assign(np.zeros(10, np.float32))
    replay = device.record(calls)
    assert z.numpy().tolist() == [0.0] * 10
    for start in (0, 100):
        x.assign(np.arange(start, start + 10, dtype=np.float32))
        replay()
        assert z.numpy().tolist() == [6.0 * n for n in range(start, start + 10)]


def test_a_graph_keeps_what_it_works_on(device, kernels):
    """The tensors live as long as the graph, and no longer."""
    before = device.pool.statistics().allocated

    def make():
        x = upload(device, np.ones(1000, np.float32))
        scale = device.modules.function(kernels, "scale")
        return device.record([lambda: scale(ONE, (64, 1, 1), 0, x.ptr, x.ptr, 10, 2.0)])

    replay = make()
    assert device.pool.statistics().allocated == before + 4000
    replay()
    device.synchronize()
    del replay
    assert device.pool.statistics().allocated == before


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda d, _: d.empty((4,), dtypes.f32), "an allocation of 16 bytes while a graph is"),
        (lambda _, x: x.numpy(), "a copy to the host while a graph is captured"),
        (lambda _, x: x.assign(np.zeros(4, np.float32)), "a copy from the host while a graph"),
        (lambda d, _: d.synchronize(), "waiting while a graph is captured"),
        (lambda d, _: d.context.synchronize(), "hipErrorStreamCapture"),
        (lambda *_: 1 // 0, "by zero"),
    ],
    ids=["allocation", "copy out", "copy in", "waiting", "waiting in HIP", "an error"],
)
def test_what_cannot_be_recorded_is_not(device, kernels, call, reason):
    """There is no graph, a log line says why, and the device works on."""
    x = upload(device, np.ones(4, np.float32))
    nothing = device.modules.function(kernels, "nothing")
    calls = [lambda: nothing(ONE, ONE, 0), lambda: call(device, x)]
    with structlog.testing.capture_logs() as logs:
        assert device.record(calls) is None
    assert [log["event"] for log in logs] == ["rocm.graph_not_recorded"]
    assert reason in logs[0]["reason"]
    assert x.numpy().tolist() == [1.0] * 4
    assert device.record([lambda: nothing(ONE, ONE, 0)]) is not None


def test_other_threads_wait_for_a_capture(device, kernels):
    """What another thread launches meanwhile runs, and is not part of the graph."""
    x = upload(device, np.ones(10, np.float32))
    scale = device.modules.function(kernels, "scale")
    seen = []

    def other():
        y = device.empty((10,), dtypes.f32)
        y.assign(np.ones(10, np.float32))
        scale(ONE, (64, 1, 1), 0, y.ptr, y.ptr, 10, 5.0)
        device.synchronize()
        seen.append(y.numpy().tolist())

    others = [threading.Thread(target=other) for _ in range(4)]

    def start_others():
        for thread in others:
            thread.start()
        time.sleep(0.05)
        scale(ONE, (64, 1, 1), 0, x.ptr, x.ptr, 10, 2.0)

    replay = device.record([start_others])
    for thread in others:
        thread.join()
    replay()
    replay()
    assert x.numpy()[0] == 4.0
    assert seen == [[5.0] * 10] * 4


@pytest.mark.slow
def test_a_capture_waits_for_those_who_wait(simulate):
    """HIP gives a capture up when somebody waits for its stream: it begins when nobody does."""
    code = """
    import threading
    x = upload(np.ones(1000, np.float32))
    run = kernel("scale")
    run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 10, 1.0)
    stop, problems = [], []
    def wait():
        try:
            while not stop:
                x.assign(np.ones(1000, np.float32))
                device.synchronize()
        except Exception as exc:
            problems.append(exc)
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for t in threads: t.start()
    call = lambda: run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 10, 2.0)
    graphs = [device.record([call]) for _ in range(50)]
    stop.append(True)
    for t in threads: t.join()
    print(None in graphs, problems)
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="500") == "False []"


def test_the_settings_reach_the_cache(device, monkeypatch, tmp_path):
    """The folder and the limit are the user's."""
    monkeypatch.setenv("PROPOLIS_KERNEL_CACHE_MIB", "3")
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path))
    cache = CodeCache.of(Config.load())
    assert (cache.folder, cache.limit) == (tmp_path / "kernels", 3 << 20)


# -- compiling -------------------------------------------------------------------------


def test_a_first_compilation_is_said(tmp_path, monkeypatch):
    """One line before it: what is compiled, where it is kept, that it is once; then no more."""
    from propolis_rocm_hip import rtc
    from propolis_rocm_hip.cache import CodeCache
    from propolis_rocm_hip.cache import Key
    from propolis_rocm_hip.modules import ModuleStore

    said = []
    monkeypatch.setattr(rtc, "cache_key", lambda p: Key(p.name, p.arch, "0" * 64, "HIP 7"))
    monkeypatch.setattr(rtc, "compile_program", lambda p: said.append(f"{p.name} done") or b"code")
    monkeypatch.setattr(
        "propolis_rocm_hip.events.Event.emit", lambda event, **fields: said.append((event, fields))
    )
    sources = [ModuleSource(name, {"f": ""}, source=lambda: "") for name in ("one", "two")]
    for _ in "ab":  # the second finds both in the cache
        modules = ModuleStore(None, "hipsim32", 32, CodeCache(tmp_path / "kernels"))
        for source in sources:
            modules._code(source)
    (event, fields), *compiled = said
    assert compiled == ["one done", "two done"]
    assert (event.name, event.level) == ("rocm.compiling", "warning")
    assert (fields["first"], fields["arch"]) == ("one", "hipsim32")
    assert fields["kept_in"] == str(tmp_path / "kernels")
    assert "once" in fields["note"]
