"""Streams run asynchronously, in order within and in no order between unless synchronised."""

from __future__ import annotations

import pytest


def test_launches_are_asynchronous(sim):
    """A launch returns before its kernel ends; synchronising waits for it."""
    lines = sim.lines("""
        m = Module()
        y, s = upload(np.zeros(1, np.float32)), stream()
        m.slow(1, 1, ctypes.c_void_p(y), i32(300_000_000), on=s)
        print(name(hip.hipStreamQuery(s)))
        ok(hip.hipStreamSynchronize(s))
        print(name(hip.hipStreamQuery(s)), download(y, 1)[0] > 0)
    """)
    assert lines == ["hipErrorNotReady", "hipSuccess True"]


def test_event_times(sim):
    """Events measure what lies between them, and tell when they cannot."""
    lines = sim.lines("""
        m = Module()
        y, s = upload(np.zeros(1, np.float32)), stream()
        a, b = ok(hip.hipEventCreate()), ok(hip.hipEventCreate())
        quiet = ok(hip.hipEventCreateWithFlags(2))
        print(name(hip.hipEventElapsedTime(a, b)))
        ok(hip.hipEventRecord(a, s))
        m.slow(1, 1, ctypes.c_void_p(y), i32(100_000_000), on=s)
        ok(hip.hipEventRecord(b, s))
        print(name(hip.hipEventQuery(b)), name(hip.hipEventElapsedTime(a, b)))
        ok(hip.hipEventSynchronize(b))
        print(name(hip.hipEventQuery(b)), ok(hip.hipEventElapsedTime(a, b)) > 1)
        ok(hip.hipEventRecord(quiet, s))
        ok(hip.hipEventSynchronize(quiet))
        print(name(hip.hipEventElapsedTime(a, quiet)))
        ok(hip.hipEventDestroy(a))
        print(name(hip.hipEventQuery(a)))
    """)
    assert lines == [
        "hipErrorInvalidHandle",
        "hipErrorNotReady hipErrorNotReady",
        "hipSuccess True",
        "hipErrorInvalidHandle",
        "hipErrorInvalidHandle",
    ]


RACE = """
m = Module()
n = 64
y = upload(np.zeros(n, np.float32))
a, b = stream(), stream()
event = ok(hip.hipEventCreateWithFlags(2))
m.fill(1, n, ctypes.c_void_p(y), i32(n), f32(1), on=a)
if {synchronised}:
    ok(hip.hipEventRecord(event, a))
    ok(hip.hipStreamWaitEvent(b, event, 0))
m.fill(1, n, ctypes.c_void_p(y), i32(n), f32(2), on=b)
ok(hip.hipDeviceSynchronize())
print(download(y, n)[0])
"""


@pytest.mark.slow
def test_shuffled_streams(sim):
    """HIPSIM_SHUFFLE runs unsynchronised streams in either order, by seed; events hold."""
    seen = {
        seed: sim.lines(RACE.format(synchronised=False), HIPSIM_SHUFFLE=seed)[0]
        for seed in range(6)
    }
    assert set(seen.values()) == {"1.0", "2.0"}
    for seed, value in seen.items():
        assert sim.lines(RACE.format(synchronised=False), HIPSIM_SHUFFLE=seed) == [value]
        assert sim.lines(RACE.format(synchronised=True), HIPSIM_SHUFFLE=seed) == ["2.0"]


def test_streams_run_at_the_same_time(sim):
    """Work of one stream does not wait for another's."""
    lines = sim.lines("""
        m = Module()
        x, y = upload(np.zeros(1, np.float32)), upload(np.zeros(1, np.float32))
        a, b = stream(), stream()
        m.slow(1, 1, ctypes.c_void_p(x), i32(300_000_000), on=a)
        m.add_one(1, 1, ctypes.c_void_p(y), i32(1), on=b)
        ok(hip.hipStreamSynchronize(b))
        print(name(hip.hipStreamQuery(a)))
    """)
    assert lines == ["hipErrorNotReady"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_null_stream_waits_for_blocking_streams(sim, seed):
    """The null stream and blocking streams wait for each other; non-blocking ones do not."""
    code = """
        m = Module()
        y = upload(np.zeros(1, np.float32))
        s = stream(0)
        m.add_one(1, 1, ctypes.c_void_p(y), i32(1), on=s)
        m.fill(1, 1, ctypes.c_void_p(y), i32(1), f32(10))
        m.add_one(1, 1, ctypes.c_void_p(y), i32(1), on=s)
        ok(hip.hipStreamSynchronize(s))
        print(download(y, 1)[0])
    """
    assert sim.lines(code, HIPSIM_SHUFFLE=seed) == ["11.0"]
    assert sim.lines(code) == ["11.0"]


@pytest.mark.slow
def test_null_stream_does_not_wait_for_non_blocking_streams(sim):
    """A copy on the null stream races with a non-blocking stream, as on hardware."""
    code = """
        m = Module()
        y = upload(np.zeros(1, np.float32))
        m.add_one(1, 1, ctypes.c_void_p(y), i32(1), on=stream())
        print(download(y, 1)[0])
    """
    values = {sim.lines(code, HIPSIM_SHUFFLE=seed)[0] for seed in range(8)}
    assert values == {"0.0", "1.0"}


def test_pageable_memory_is_staged(sim):
    """Ordinary host memory may be reused when the copy call returns."""
    lines = sim.lines(
        """
        d, s = alloc(4), stream()
        x = np.ones(1, np.float32)
        ok(hip.hipMemcpyAsync(d, x, 4, KIND.hipMemcpyHostToDevice, s))
        x[0] = 7
        back = np.zeros(1, np.float32)
        ok(hip.hipMemcpyAsync(back, d, 4, KIND.hipMemcpyDeviceToHost, s))
        print(back[0])
        """,
        HIPSIM_SLOW_COPIES=50_000,
    )
    assert lines == ["1.0"]


def test_pinned_memory_is_read_late(sim):
    """Pinned memory that is reused before the stream got to the copy shows the new value."""
    lines = sim.lines(
        """
        d, s = alloc(4), stream()
        x, address = pinned(1)
        x[0] = 1
        ok(hip.hipMemcpyAsync(d, address, 4, KIND.hipMemcpyHostToDevice, s))
        x[0] = 7
        back, back_address = pinned(1)
        back[0] = 0
        ok(hip.hipMemcpyAsync(back_address, d, 4, KIND.hipMemcpyDeviceToHost, s))
        print(back[0])
        ok(hip.hipStreamSynchronize(s))
        print(back[0])
        registered = np.ones(1, np.float32)
        ok(hip.hipHostRegister(registered, 4, 0))
        ok(hip.hipMemcpyAsync(d, registered, 4, KIND.hipMemcpyHostToDevice, s))
        registered[0] = 8
        ok(hip.hipStreamSynchronize(s))
        print(download(d, 1)[0])
        """,
        HIPSIM_SLOW_COPIES=50_000,
    )
    assert lines == ["0.0", "7.0", "8.0"]


def test_freeing_waits(sim):
    """A free lets what was submitted before it finish."""
    lines = sim.lines("""
        m = Module()
        y, s = upload(np.zeros(1, np.float32)), stream()
        m.slow(1, 1, ctypes.c_void_p(y), i32(50_000_000), on=s)
        ok(hip.hipFree(y))
        print(name(hip.hipStreamQuery(s)))
    """)
    assert lines == ["hipSuccess"]


def test_copy_of_memory_that_is_freed_meanwhile(sim):
    """A queued copy of memory that an unordered hipFreeAsync frees before it is found."""
    lines = sim.lines("""
        m = Module()
        y, a, b = upload(np.zeros(1, np.float32)), stream(), stream()
        x, address = pinned(1)
        m.slow(1, 1, ctypes.c_void_p(upload(np.zeros(1, np.float32))), i32(50_000_000), on=a)
        ok(hip.hipMemcpyAsync(address, y, 4, KIND.hipMemcpyDeviceToHost, a))
        ok(hip.hipFreeAsync(y, b))
        print(name(hip.hipStreamSynchronize(b)), name(hip.hipStreamSynchronize(a)))
        print(last_report())
    """)
    assert lines[0].endswith(" hipErrorIllegalAddress")  # whoever else hears of it
    assert "freed allocation" in lines[1]


def test_host_functions(sim):
    """A host function runs in its place in the stream."""
    lines = sim.lines("""
        s = stream()
        seen = []
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
        function = LIBRARY.hipLaunchHostFunc
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        for i in (1, 2):
            function(int(s), ctypes.cast(callback, ctypes.c_void_p), i)
        ok(hip.hipStreamSynchronize(s))
        print(seen)
    """)
    assert lines == ["[1, 2]"]


def test_stream_handles(sim):
    """A destroyed stream is no stream; flags, priority and device are what was asked for."""
    lines = sim.lines("""
        print(ok(hip.hipDeviceGetStreamPriorityRange()))
        s = ok(hip.hipStreamCreateWithPriority(1, -5))
        print(ok(hip.hipStreamGetFlags(s)), ok(hip.hipStreamGetPriority(s)),
              ok(hip.hipStreamGetDevice(s)))
        ok(hip.hipStreamDestroy(s))
        print(name(hip.hipStreamSynchronize(s)), name(hip.hipStreamDestroy(s)))
        print(name(hip.hipStreamCreateWithFlags(8)))
    """)
    assert lines == [
        "(1, -1)",
        "1 -1 0",
        "hipErrorInvalidHandle hipErrorInvalidHandle",
        "hipErrorInvalidValue",
    ]


def test_pools(sim):
    """The default pool gives stream-ordered memory and counts it."""
    lines = sim.lines("""
        pool = ok(hip.hipDeviceGetDefaultMemPool(0))
        threshold = np.array([1 << 30], np.uint64)
        A = hip.hipMemPoolAttr
        ok(hip.hipMemPoolSetAttribute(pool, A.hipMemPoolAttrReleaseThreshold, threshold))
        threshold[:] = 0
        ok(hip.hipMemPoolGetAttribute(pool, A.hipMemPoolAttrReleaseThreshold, threshold))
        s = stream()
        x = ok(hip.hipMallocAsync(100, s))
        used = np.zeros(1, np.uint64)
        ok(hip.hipMemPoolGetAttribute(pool, A.hipMemPoolAttrUsedMemCurrent, used))
        print(threshold[0], used[0], name(hip.hipMemPoolTrimTo(pool, 0)))
    """)
    assert lines == ["1073741824 100 hipSuccess"]
