"""What is wrong with a launch or a kernel ends in an error that says so."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("launch", "error", "message"),
    [
        ("m.fill(1, 1, P, i32(1))", "hipErrorInvalidValue", "has 12 bytes, the kernel's 3"),
        ("m.fill(1, 1, P, i64(1), f32(1))", "hipErrorInvalidValue", "has 20 bytes"),
        ("m.fill(1, 1)", "hipErrorInvalidValue", "buffer has 0 bytes"),
        ("m.nothing(1, 1025)", "hipErrorInvalidConfiguration", "at most 1024"),
        ("m.nothing(1, (32, 32, 2))", "hipErrorInvalidConfiguration", "block of 2048 threads"),
        ("m.nothing(0, 64)", "hipErrorInvalidConfiguration", "is empty"),
        ("m.nothing(1, 0)", "hipErrorInvalidConfiguration", "is empty"),
        ("m.nothing(1 << 23, 512)", "hipErrorInvalidConfiguration", "2^32 threads"),
        ("m.nothing(1, 1, shared=65537)", "hipErrorInvalidValue", "a block has 65536"),
        ("m.static_shared(1, 1, P, shared=5000)", "hipErrorInvalidValue", "61440 of static"),
    ],
)
def test_launches_that_cannot_be(sim, launch, error, message):
    """A launch that disagrees with the kernel or the device is refused at the call."""
    lines = sim.lines(f"""
        m = Module()
        P = ctypes.c_void_p(alloc(4096))
        print({launch}, last_report())
        print(name(hip.hipDeviceSynchronize()))
    """)
    assert lines[0].startswith(error + " launch of ")
    assert message in lines[0]
    assert lines[1] == "hipSuccess"


def test_no_arguments_at_all(sim):
    """Null kernelParams and extra are refused for a kernel that has parameters."""
    lines = sim.lines("""
        m = Module()
        f = m.function("fill")
        print(name(hip.hipModuleLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, None, None)))
    """)
    assert lines == ["hipErrorInvalidValue"]


@pytest.mark.parametrize(
    ("launch", "error", "message"),
    [
        (
            "m.leave_before_barrier(1, 100, P, i32(70))",
            "hipErrorLaunchFailure",
            "thread (70,0,0): returned, while 70 of 100 threads wait at the barrier at test.hip:",
        ),
        (
            "m.two_barriers(1, 64, P)",
            "hipErrorLaunchFailure",
            "waits at the barrier at test.hip:",
        ),
        (
            "m.leave_before_shuffle(1, 32, P, i32(20))",
            "hipErrorLaunchFailure",
            "the shuffle at test.hip:",
        ),
        ("m.divide(1, 1, P, i32(0))", "hipErrorLaunchFailure", "division by zero"),
        ("m.trap(1, 1)", "hipErrorLaunchFailure", "illegal instruction"),
        ("m.deep(1, 1, P, i32(5))", "hipErrorLaunchFailure", "stack overflow"),
        (
            "m.write_behind_dynamic(1, 1, i32(5), shared=20)",
            "hipErrorIllegalAddress",
            "wrote outside dynamic shared memory: byte 20 of 20",
        ),
    ],
)
def test_kernels_that_go_wrong(sim, warp, launch, error, message):
    """A kernel's fault is an asynchronous error that every later call repeats."""
    lines = sim.lines(
        f"""
        m = Module()
        P = ctypes.c_void_p(alloc(4096))
        nothing = m.nothing
        print({launch})
        print(name(hip.hipDeviceSynchronize()), last_report())
        print(name(hip.hipMalloc(4)), name(hip.hipDeviceSynchronize()), nothing(1, 1))
        """,
        warp=warp,
    )
    assert lines[0] == "hipSuccess"
    assert lines[1].startswith(error + " kernel ")
    assert message in lines[1]
    assert lines[2] == f"{error} {error} {error}"


def test_uninitialised_shared_memory(sim):
    """Shared memory is poison at the start of each block, static or dynamic."""
    lines = sim.lines("""
        m = Module()
        y = alloc(32)
        for _ in range(2):
            m.read_uninitialised_shared(3, 8, ctypes.c_void_p(y), i32(4))
            print(np.isnan(download(y, 8)).tolist() == [False] * 4 + [True] * 4)
            m.read_uninitialised_dynamic(3, 8, ctypes.c_void_p(y), shared=32)
            print(np.isnan(download(y, 8)).all())
    """)
    assert lines == ["True"] * 4


def test_forgotten_barrier(sim):
    """A kernel that forgets a barrier is wrong in one of two launches, not right by luck."""
    lines = sim.lines("""
        m = Module()
        x, y = upload(np.ones(64, np.float32)), alloc(4)
        for _ in range(2):
            m.sum_without_barrier(1, 64, ctypes.c_void_p(x), ctypes.c_void_p(y))
            print(download(y, 1)[0])
    """)
    assert any(line != "64.0" for line in lines)


def test_endless_kernel(sim):
    """A kernel that never ends is given up, and the device with it; nothing hangs."""
    lines = sim.lines(
        """
        m = Module()
        y = upload(np.zeros(1, np.int32))
        m.forever(1, 1, ctypes.c_void_p(y))
        print(name(hip.hipDeviceSynchronize()), last_report())
        """,
        HIPSIM_TIMEOUT=1,
        timeout=30,
    )
    assert lines[0].startswith("hipErrorLaunchTimeOut a kernel has not ended after 1 s")


def test_device_process_that_is_killed(sim):
    """The device process's death is an error, not a hang or a crash."""
    lines = sim.lines(
        """
        import signal
        m = Module()
        y = upload(np.zeros(1, np.int32))
        pid = next(p for t in os.listdir("/proc/self/task")
                   for p in open(f"/proc/self/task/{t}/children").read().split())
        m.forever(1, 1, ctypes.c_void_p(y))
        os.kill(int(pid), signal.SIGKILL)
        print(name(hip.hipDeviceSynchronize()), last_report())
        """,
        timeout=30,
    )
    assert lines[0].startswith("hipErrorUnknown the device process died")


def test_function_attributes(sim):
    """A kernel's attributes tell its limits, its shared memory and its parameters."""
    lines = sim.lines("""
        m = Module()
        A = hip.hipFunction_attribute
        f = m.function("sum")
        shared, threads = (A["HIP_FUNC_ATTRIBUTE_" + n] for n in
                           ("SHARED_SIZE_BYTES", "MAX_THREADS_PER_BLOCK"))
        print(ok(hip.hipFuncGetAttribute(threads, f)), ok(hip.hipFuncGetAttribute(shared, f)),
              ok(hip.hipFuncGetAttribute(shared, m.function("fill"))))
        print(ok(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(f, 256, 0)))
        print(name(hip.hipModuleGetFunction(m.handle, b"absent")))
    """)
    assert lines == ["1024 128 0", "8", "hipErrorNotFound"]


def test_images_that_are_no_modules(sim, tmp_path):
    """What is no module of the simulator is refused before anything of it is loaded."""
    (tmp_path / "short").write_bytes(b"x")
    lines = sim.lines(f"""
        import struct
        def elf(machine):
            magic = b"\\x7fELF\\x02\\x01\\x01"
            return magic + bytes(9) + struct.pack("<HH", 3, machine) + bytes(100)
        for image in (elf(224), b"__CLANG_OFFLOAD_BUNDLE__" + bytes(64), b"CCOB" + bytes(64),
                      bytes(100), elf(62)):
            print(name(hip.hipModuleLoadData(image)))
        import _ctypes
        print(name(hip.hipModuleLoad(_ctypes.__file__.encode())))
        print(name(hip.hipModuleLoad({str(tmp_path / "none")!r}.encode())))
        print(name(hip.hipModuleLoad({str(tmp_path / "short")!r}.encode())))
    """)
    assert lines == [
        "hipErrorNoBinaryForGpu",
        "hipErrorNoBinaryForGpu",
        "hipErrorNoBinaryForGpu",
        "hipErrorInvalidImage",
        "hipErrorInvalidImage",
        "hipErrorInvalidImage",
        "hipErrorFileNotFound",
        "hipErrorInvalidImage",
    ]


def test_module_of_another_warp_size(sim):
    """A module runs on the warp size that it was compiled for."""
    lines = sim.lines(
        f"""
        print(name(hip.hipModuleLoad({str(sim.module(64))!r}.encode())), last_report())
        """
    )
    assert lines == [
        "hipErrorNoBinaryForGpu hipModuleLoad: compiled for hipsim64, the device is hipsim32"
    ]


def test_unloaded_modules(sim):
    """A function of an unloaded module cannot be launched; loading and unloading leaves nothing."""
    lines = sim.lines("""
        for _ in range(20):
            m = Module()
            f = m.function("nothing")
            ok(hip.hipModuleUnload(m.handle))
        print(name(hip.hipModuleLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, None, None, ())))
        print(name(hip.hipModuleUnload(m.handle)))
    """)
    assert lines == ["hipErrorInvalidHandle", "hipErrorInvalidHandle"]
