"""Faults happen when the environment asks for them."""

from __future__ import annotations


def test_nth_allocation_fails(sim):
    """HIPSIM_FAIL_MALLOC fails that allocation alone."""
    lines = sim.lines("for _ in range(4): print(name(hip.hipMalloc(10)))", HIPSIM_FAIL_MALLOC=3)
    assert lines == ["hipSuccess", "hipSuccess", "hipErrorOutOfMemory", "hipSuccess"]


def test_nth_launch_fails(sim):
    """HIPSIM_FAIL_LAUNCH fails that launch alone, with the code it is given."""
    code = """
        m = Module()
        for _ in range(3): print(m.nothing(1, 1))
        print(name(hip.hipDeviceSynchronize()), count("launch"))
    """
    assert sim.lines(code, HIPSIM_FAIL_LAUNCH=2) == [
        "hipSuccess",
        "hipErrorLaunchOutOfResources",
        "hipSuccess",
        "hipSuccess 3",
    ]
    assert sim.lines(code, HIPSIM_FAIL_LAUNCH="2:98")[1] == "hipErrorInvalidDeviceFunction"


def test_device_is_lost(sim):
    """HIPSIM_DEVICE_LOST lets a launch end the device: each later call fails, others' do not."""
    lines = sim.lines(
        """
        m = Module()
        y = alloc(4)
        s = stream()
        print(m.nothing(1, 1, on=s), m.nothing(1, 1, on=s))
        print(name(hip.hipStreamSynchronize(s)), name(hip.hipMalloc(1)), name(hip.hipFree(y)))
        print(name(hip.hipMemcpy(np.zeros(4), y, 4, KIND.hipMemcpyDeviceToHost)))
        print(name(hip.hipSetDevice(1)), name(hip.hipMalloc(1)), ok(hip.hipGetDeviceCount()))
        """,
        HIPSIM_DEVICE_LOST=2,
        HIPSIM_DEVICES=2,
    )
    assert lines == [
        "hipSuccess hipSuccess",
        "hipErrorLaunchFailure hipErrorLaunchFailure hipErrorLaunchFailure",
        "hipErrorLaunchFailure",
        "hipSuccess hipSuccess 2",
    ]


def test_faults_from_within(sim):
    """A test can ask for a fault once the part that must not fail is over."""
    lines = sim.lines("""
        alloc(4); alloc(4)
        LIBRARY.hipsim_inject(b"malloc", b"1")
        print(name(hip.hipMalloc(1)), name(hip.hipMalloc(1)))
    """)
    assert lines == ["hipErrorOutOfMemory hipSuccess"]


def test_slow_copies(sim):
    """HIPSIM_SLOW_COPIES delays copies, asynchronously."""
    lines = sim.lines(
        """
        import time
        d, (x, address), s = alloc(4), pinned(1), stream()
        begin = time.monotonic()
        ok(hip.hipMemcpyAsync(d, address, 4, KIND.hipMemcpyHostToDevice, s))
        print(name(hip.hipStreamQuery(s)))
        ok(hip.hipStreamSynchronize(s))
        print(time.monotonic() - begin >= 0.3)
        """,
        HIPSIM_SLOW_COPIES=300_000,
    )
    assert lines == ["hipErrorNotReady", "True"]


def test_no_devices(sim):
    """With no device every call says so."""
    lines = sim.lines(
        "print(name(hip.hipGetDeviceCount()), name(hip.hipInit(0)), name(hip.hipMalloc(1)))",
        HIPSIM_DEVICES=0,
    )
    assert lines == ["hipErrorNoDevice hipErrorNoDevice hipErrorNoDevice"]


def test_settings_that_make_no_sense(sim):
    """A setting that is out of range ends the process with what it may be."""
    for name, value, message in [
        ("HIPSIM_DEVICES", "x", "a number from 0 to 16"),
        ("HIPSIM_MEMORY", "12", "a number from 1048576 to"),
        ("HIPSIM_FAIL_MALLOC", "soon", "n, n+, n:code or n+:code"),
        ("HIPSIM_ALIGNMENT", "100", "a power of two"),
    ]:
        done = sim.run("ok(hip.hipGetDeviceCount())", **{name: value})
        assert done.returncode == 2
        assert f"={value}: expected {message}" in done.stderr


def test_forked_processes(sim):
    """A process that forked cannot use the parent's device; the parent goes on."""
    lines = sim.lines("""
        y = upload(np.ones(4, np.float32))
        pid = os.fork()
        if pid == 0:
            print(name(hip.hipMalloc(4)), flush=True)
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], download(y, 4).tolist())
    """)
    assert lines == ["hipErrorNotInitialized", "0 [1.0, 1.0, 1.0, 1.0]"]
