"""Streams capture graphs, which replay; what hardware rejects in a capture is rejected."""

from __future__ import annotations

import textwrap

import pytest


PRELUDE = """
m = Module()
y = upload(np.zeros(1, np.float32))
P = ctypes.c_void_p(y)
s = stream()
MODE = hip.hipStreamCaptureMode
def begin(on=None, mode="Global"):
    return name(hip.hipStreamBeginCapture(on or s, MODE["hipStreamCaptureMode" + mode]))
def end(on=None):
    result = hip.hipStreamEndCapture(on or s)
    return result[1] if int(result[0]) == 0 else result[0].name
def replay(graph, on=None):
    return name(hip.hipGraphLaunch(ok(hip.hipGraphInstantiateWithFlags(graph, 0)), on or s))
"""


def script(text):
    """The text behind what every script here begins with."""
    return PRELUDE + textwrap.dedent(text)


def test_replay(sim):
    """A captured graph does nothing until it is launched, then all of it each time."""
    lines = sim.lines(
        script("""
        x = upload(np.full(1, 5, np.float32))
        begin()
        print(ok(hip.hipStreamIsCapturing(s)).name)
        ok(hip.hipMemcpyAsync(y, x, 4, KIND.hipMemcpyDeviceToDevice, s))
        m.add_one(1, 1, P, i32(1), on=s)
        m.add_one(1, 1, P, i32(1), on=s)
        graph = end()
        print(ok(hip.hipStreamIsCapturing(s)).name)
        print(download(y, 1)[0])
        executable = ok(hip.hipGraphInstantiateWithFlags(graph, 0))
        ok(hip.hipGraphDestroy(graph))
        for _ in range(3):
            ok(hip.hipMemset(y, 0, 4))
            ok(hip.hipGraphLaunch(executable, s))
            ok(hip.hipStreamSynchronize(s))
            print(download(y, 1)[0])
        ok(hip.hipGraphExecDestroy(executable))
        print(name(hip.hipGraphLaunch(executable, s)))
        """)
    )
    assert lines == [
        "hipStreamCaptureStatusActive",
        "hipStreamCaptureStatusNone",
        "0.0",
        "7.0",
        "7.0",
        "7.0",
        "hipErrorInvalidValue",
    ]


def test_arguments_are_copied_at_capture(sim):
    """The argument buffer may be reused after a captured launch."""
    lines = sim.lines(
        script("""
        buffer = (ctypes.c_char * 16)()
        size = ctypes.c_size_t(16)
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        f = m.function("fill")
        def launch(value):
            ctypes.memmove(buffer, bytes(P) + bytes(i32(1)) + bytes(f32(value)), 16)
            ok(hip.hipModuleLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, None, extra))
        begin()
        launch(3)
        graph = end()
        launch(9)
        print(replay(graph))
        ok(hip.hipStreamSynchronize(s))
        print(download(y, 1)[0])
        """)
    )
    assert lines == ["hipSuccess", "3.0"]


def test_nodes(sim):
    """A graph tells what it consists of."""
    lines = sim.lines(
        script("""
        begin()
        ok(hip.hipMemsetAsync(y, 0, 4, s))
        m.add_one(1, 1, P, i32(1), on=s)
        graph = end()
        size = ctypes.c_size_t(0)
        function = LIBRARY.hipGraphGetNodes
        function.argtypes = [ctypes.c_void_p] * 3
        function(int(graph), None, ctypes.addressof(size))
        handles = (ctypes.c_void_p * size.value)()
        function(int(graph), ctypes.addressof(handles), ctypes.addressof(size))
        print([ok(hip.hipGraphNodeGetType(h)).name for h in handles])
        """)
    )
    assert lines == ["['hipGraphNodeTypeMemset', 'hipGraphNodeTypeKernel']"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("hip.hipMalloc(4)", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipFree(y)", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipHostMalloc(4, 0)", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipDeviceSynchronize()", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipStreamSynchronize(s)", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipStreamQuery(s)", "hipErrorStreamCaptureUnsupported"),
        ("hip.hipMallocAsync(4, s)", "hipErrorStreamCaptureUnsupported"),
        (
            "hip.hipMemcpy(x, y, 4, KIND.hipMemcpyDeviceToHost)",
            "hipErrorStreamCaptureUnsupported",
        ),
        (
            "hip.hipMemcpyAsync(y, x, 4, KIND.hipMemcpyHostToDevice, s)",
            "hipErrorStreamCaptureUnsupported",
        ),
        ("hip.hipStreamWaitEvent(s, outside, 0)", "hipErrorStreamCaptureIsolation"),
    ],
)
def test_what_cannot_be_captured(sim, call, error):
    """An allocation, a wait or a staged copy fails, and makes the capture invalid."""
    lines = sim.lines(
        script(f"""
        x = np.zeros(1, np.float32)
        outside = ok(hip.hipEventCreate())
        ok(hip.hipEventRecord(outside, stream()))
        begin()
        m.add_one(1, 1, P, i32(1), on=s)
        print(name({call}))
        print(ok(hip.hipStreamIsCapturing(s)).name, m.add_one(1, 1, P, i32(1), on=s))
        print(end(), m.add_one(1, 1, P, i32(1), on=s))
        """)
    )
    assert lines[0] == error
    assert lines[1] == "hipStreamCaptureStatusInvalidated hipErrorStreamCaptureInvalidated"
    assert lines[2] == "hipErrorStreamCaptureInvalidated hipSuccess"


def test_modes(sim):
    """A relaxed capture allows unsafe calls; a thread's own forbids them to that thread alone."""
    lines = sim.lines(
        script("""
        import threading
        begin(mode="Relaxed")
        print(name(hip.hipMalloc(4)))
        print(type(end()).__name__)
        for mode in ("ThreadLocal", "Global"):
            begin(mode=mode)
            seen = []
            t = threading.Thread(target=lambda: seen.append(name(hip.hipMalloc(4))))
            t.start()
            t.join()
            print(mode, seen[0], type(end()).__name__)
        begin()
        t = threading.Thread(target=lambda: seen.append(end()))
        t.start()
        t.join()
        print(seen[-1], type(end()).__name__)
        """)
    )
    assert lines == [
        "hipSuccess",
        "ihipGraph",
        "ThreadLocal hipSuccess ihipGraph",
        "Global hipErrorStreamCaptureUnsupported str",
        "hipErrorStreamCaptureWrongThread ihipGraph",
    ]


def test_null_stream_in_a_capture(sim):
    """The null stream cannot capture, nor be used while a blocking stream captures."""
    lines = sim.lines(
        script("""
        print(name(hip.hipStreamBeginCapture(None, MODE.hipStreamCaptureModeGlobal)))
        blocking = stream(0)
        begin(blocking)
        print(m.add_one(1, 1, P, i32(1)))
        print(end(blocking))
        begin()
        print(m.add_one(1, 1, P, i32(1)))
        print(type(end()).__name__)
        """)
    )
    assert lines == [
        "hipErrorStreamCaptureUnsupported",
        "hipErrorStreamCaptureImplicit",
        "hipErrorStreamCaptureInvalidated",
        "hipSuccess",
        "ihipGraph",
    ]


def test_captures_of_several_streams(sim):
    """Events fork a capture to other streams and must join them again."""
    lines = sim.lines(
        script("""
        t = stream()
        fork, join = ok(hip.hipEventCreate()), ok(hip.hipEventCreate())
        def record(joined):
            begin()
            m.fill(1, 1, P, i32(1), f32(1), on=s)
            ok(hip.hipEventRecord(fork, s))
            ok(hip.hipStreamWaitEvent(t, fork, 0))
            m.add_one(1, 1, P, i32(1), on=t)
            if joined:
                ok(hip.hipEventRecord(join, t))
                ok(hip.hipStreamWaitEvent(s, join, 0))
                m.add_one(1, 1, P, i32(1), on=s)
        record(False)
        print(name(hip.hipEventSynchronize(fork)), end(t), end())
        record(True)
        print(replay(end()))
        ok(hip.hipStreamSynchronize(s))
        print(download(y, 1)[0], m.add_one(1, 1, P, i32(1), on=t))
        """)
    )
    assert lines == [
        "hipErrorCapturedEvent hipErrorStreamCaptureUnmatched hipErrorStreamCaptureUnjoined",
        "hipSuccess",
        "3.0 hipSuccess",
    ]


def test_captures_begin_and_end_once(sim):
    """Ending what has not begun, or beginning twice, is an error."""
    lines = sim.lines(script("print(end(), begin(), begin(), type(end()).__name__)"))
    assert lines == ["hipErrorIllegalState hipSuccess hipErrorIllegalState ihipGraph"]


def test_replay_of_an_unloaded_module(sim):
    """A graph whose kernels' module is gone fails; nothing runs what is no longer there."""
    lines = sim.lines(
        script("""
        begin()
        m.add_one(1, 1, P, i32(1), on=s)
        graph = end()
        ok(hip.hipModuleUnload(m.handle))
        print(replay(graph))
        print(name(hip.hipStreamSynchronize(s)), last_report())
        """)
    )
    assert lines == [
        "hipSuccess",
        "hipErrorInvalidHandle kernel add_one of a module that is unloaded",
    ]


def test_replay_of_freed_memory(sim):
    """A graph that touches memory which was freed since the capture fails."""
    lines = sim.lines(
        script("""
        begin()
        m.add_one(1, 1, P, i32(1), on=s)
        graph = end()
        ok(hip.hipFree(y))
        print(replay(graph))
        print(name(hip.hipStreamSynchronize(s)))
        """)
    )
    assert lines == ["hipSuccess", "hipErrorIllegalAddress"]


def test_faults_count_replays(sim):
    """A graph launch counts as one launch for the injected faults."""
    lines = sim.lines(
        script("""
        begin()
        m.add_one(1, 1, P, i32(1), on=s)
        graph = end()
        LIBRARY.hipsim_inject(b"launch", b"2")
        print(replay(graph), replay(graph), replay(graph))
        ok(hip.hipStreamSynchronize(s))
        print(download(y, 1)[0])
        """)
    )
    assert lines == ["hipSuccess hipErrorLaunchOutOfResources hipSuccess", "2.0"]
