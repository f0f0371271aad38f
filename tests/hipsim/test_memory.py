"""Device memory is another address space, and what is wrong with its use is found."""

from __future__ import annotations

import re
import signal


def test_host_may_not_touch_device_memory(sim):
    """Dereferencing a device pointer on the host ends the process and names the allocation."""
    done = sim.run("""
        y = alloc(1000)
        ctypes.c_char.from_address(y + 10).value
    """)
    assert done.returncode == -signal.SIGSEGV
    assert "host code touched device memory" in done.stderr
    assert "at byte 10 of allocation 1 of device 0 (1000 bytes" in done.stderr


def test_other_crashes_of_the_host_stay_as_they_were(sim):
    """A segmentation fault elsewhere takes the path it had before the simulator was loaded."""
    done = sim.run("""
        import faulthandler
        faulthandler.enable()
        alloc(4)
        ctypes.c_char.from_address(16).value
    """)
    assert done.returncode == -signal.SIGSEGV
    assert "hipsim" not in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_kernel_may_not_touch_host_memory(sim):
    """A kernel that is given a host pointer fails asynchronously, and says where it was."""
    lines = sim.lines("""
        m = Module()
        x = np.zeros(100, np.float32)
        y = alloc(4)
        s = stream()
        print(m.read_at(1, 1, ctypes.c_void_p(x.ctypes.data), i64(3), ctypes.c_void_p(y), on=s))
        print(name(hip.hipStreamSynchronize(s)))
        print(last_report())
    """)
    assert lines[:2] == ["hipSuccess", "hipErrorIllegalAddress"]
    assert re.fullmatch(
        r"kernel read_at, block \(0,0,0\), thread \(0,0,0\): illegal access of 0x[0-9a-f]+: "
        r"host memory, or no memory at all",
        lines[2],
    )


def test_access_past_the_end(sim):
    """Past the page of an allocation's end a kernel faults; the report says how far."""
    lines = sim.lines("""
        m = Module()
        x, y = alloc(4096), alloc(4)
        m.read_at(1, 1, ctypes.c_void_p(x), i64(1024), ctypes.c_void_p(y))
        print(name(hip.hipDeviceSynchronize()), last_report())
    """)
    assert lines[0].startswith("hipErrorIllegalAddress kernel read_at, ")
    assert "0 bytes past the end of allocation 1 of device 0 (4096 bytes" in lines[0]


def test_write_just_past_the_end(sim):
    """A write of a few bytes past the end is found after the kernel and blamed on it."""
    lines = sim.lines("""
        m = Module()
        y = alloc(400)
        m.write_behind(1, 1, ctypes.c_void_p(y), i32(100), i32(0))
        print(name(hip.hipDeviceSynchronize()), last_report())
    """)
    assert lines[0].startswith(
        "hipErrorIllegalAddress kernel write_behind wrote outside of an allocation: "
        "0 bytes past the end of allocation 1 of device 0 (400 bytes"
    )


def test_write_just_before_the_start(sim):
    """A write before the start is found as well."""
    lines = sim.lines("""
        m = Module()
        y = alloc(400)
        m.write_behind(1, 1, ctypes.c_void_p(y), i32(0), i32(-2))
        print(name(hip.hipDeviceSynchronize()), last_report())
    """)
    assert "8 bytes before allocation 1 of device 0 (400 bytes" in lines[0]


def test_damage_through_no_argument_is_found_later(sim):
    """Damage beside memory that the kernel was not given is found at the next synchronisation."""
    lines = sim.lines("""
        m = Module()
        x, y = alloc(400), alloc(400)
        m.write_behind(1, 1, ctypes.c_void_p(x), i32((y - x) // 4), i32(100))
        print(name(hip.hipDeviceSynchronize()), last_report())
    """)
    assert lines[0].startswith(
        "hipErrorIllegalAddress memory was written outside of an allocation: "
        "0 bytes past the end of allocation 2"
    )


def test_use_after_free(sim):
    """Freed memory is unreadable, and the report knows what it was."""
    lines = sim.lines("""
        m = Module()
        x, y = upload(np.ones(50, np.float32)), alloc(4)
        ok(hip.hipFree(x))
        alloc(200)
        m.read_at(1, 1, ctypes.c_void_p(x), i64(2), ctypes.c_void_p(y))
        print(name(hip.hipDeviceSynchronize()), last_report())
    """)
    assert "hipErrorIllegalAddress" in lines[0]
    assert "at byte 8 of the freed allocation 1 of device 0 (200 bytes" in lines[0]


def test_use_after_stream_ordered_free(sim):
    """What hipFreeAsync frees may be used before it in the stream, not behind it."""
    lines = sim.lines("""
        m = Module()
        s = stream()
        x, y = int(ok(hip.hipMallocAsync(200, s))), alloc(4)
        m.fill(1, 50, ctypes.c_void_p(x), i32(50), f32(3), on=s)
        m.read_at(1, 1, ctypes.c_void_p(x), i64(2), ctypes.c_void_p(y), on=s)
        ok(hip.hipFreeAsync(x, s))
        print(name(hip.hipStreamSynchronize(s)), download(y, 1)[0])
        m.read_at(1, 1, ctypes.c_void_p(x), i64(2), ctypes.c_void_p(y), on=s)
        print(name(hip.hipStreamSynchronize(s)))
    """)
    assert lines == ["hipSuccess 3.0", "hipErrorIllegalAddress"]


def test_fresh_memory_is_poisoned(sim):
    """What nobody has written is NaN as any float and far out of range as an index."""
    lines = sim.lines("""
        y = alloc(64)
        for t in ("f2", "f4", "f8"):
            print(np.isnan(download(y, 4, t)).all())
        print((download(y, 4, "i4") > 2**30).all(), (download(y, 4, "i8") > 2**60).all())
    """)
    assert lines == ["True", "True", "True", "True True"]


def test_memory_is_poisoned_again_when_it_is_allocated_again(sim):
    """No allocation shows what an earlier one held."""
    lines = sim.lines("""
        for _ in range(3):
            y = upload(np.zeros(1000, np.float32))
            ok(hip.hipFree(y))
        print(np.isnan(download(alloc(4000), 1000)).all())
    """)
    assert lines == ["True"]


def test_frees_of_what_is_not_allocated(sim):
    """Double and invalid frees are errors that name what was freed; freeing null is none."""
    lines = sim.lines("""
        y = alloc(100)
        print(name(hip.hipFree(y)))
        print(name(hip.hipFree(y)), last_report())
        z = alloc(100)
        print(name(hip.hipFree(z + 16)), last_report())
        print(name(hip.hipFree(12345 * 4096)), last_report())
        print(name(hip.hipFree(0)))
    """)
    assert lines[0] == "hipSuccess"
    assert lines[1].startswith("hipErrorInvalidValue double free of 0x")
    assert "at byte 0 of the freed allocation 1" in lines[1]
    assert lines[2].startswith("hipErrorInvalidValue invalid free of 0x")
    assert "at byte 16 of allocation 2" in lines[2]
    assert "no memory of the device" in lines[3]
    assert lines[4] == "hipSuccess"


def test_copies_are_checked(sim):
    """A copy or fill that leaves its allocation, or whose kind is wrong, is refused."""
    lines = sim.lines("""
        x, y = alloc(100), np.zeros(200, np.uint8)
        print(name(hip.hipMemcpy(x, y, 101, KIND.hipMemcpyHostToDevice)), last_report()[:60])
        print(name(hip.hipMemcpy(x, y, 100, KIND.hipMemcpyDeviceToHost)))
        print(name(hip.hipMemcpy(y, x, 100, KIND.hipMemcpyHostToDevice)))
        print(name(hip.hipMemset(x, 0, 101)))
        ok(hip.hipFree(x))
        print(name(hip.hipMemcpy(y, x, 100, KIND.hipMemcpyDeviceToHost)))
        print(name(hip.hipMemcpy(y, x, 0, KIND.hipMemcpyDeviceToHost)))
    """)
    assert lines[0].startswith("hipErrorInvalidValue hipMemcpy of 101 bytes at 0x")
    assert lines[1:] == [
        "hipErrorInvalidMemcpyDirection",
        "hipErrorInvalidMemcpyDirection",
        "hipErrorInvalidValue",
        "hipErrorInvalidValue",
        "hipSuccess",
    ]


def test_two_dimensional_copies_and_fills(sim):
    """Rows at a pitch are copied and filled, and nothing between them."""
    lines = sim.lines("""
        x = np.arange(24, dtype=np.uint8).reshape(4, 6)
        d = alloc(40)
        ok(hip.hipMemset(d, 255, 40))
        ok(hip.hipMemcpy2D(d, 10, x, 6, 5, 4, KIND.hipMemcpyHostToDevice))
        want = np.full((4, 10), 255, np.uint8)
        want[:, :5] = x[:, :5]
        print((download(d, (4, 10), np.uint8) == want).all())
        ok(hip.hipMemset2D(d + 1, 10, 7, 2, 3))
        want[:3, 1:3] = 7
        print((download(d, (4, 10), np.uint8) == want).all())
        ok(hip.hipMemsetD32(d, 0x01020304, 3))
        ok(hip.hipMemsetD16(d + 12, 0x0506, 2))
        print(download(d, 16, np.uint8).tolist())
    """)
    assert lines == [
        "True",
        "True",
        "[4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 6, 5, 6, 5]",
    ]


def test_memory_is_accounted(sim):
    """Free memory shrinks by what is allocated, and more than there is cannot be had."""
    lines = sim.lines(
        """
        print(ok(hip.hipMemGetInfo()))
        y = alloc(3000)
        print(ok(hip.hipMemGetInfo()), count("live"), count("malloc"))
        print(name(hip.hipMalloc((1 << 20) - 2999)))
        ok(hip.hipFree(y))
        print(name(hip.hipMalloc(1 << 20)))
        """,
        HIPSIM_MEMORY=1 << 20,
    )
    assert lines == [
        "(1048576, 1048576)",
        "(1045576, 1048576) 3000 1",
        "hipErrorOutOfMemory",
        "hipSuccess",
    ]


def test_leaks_are_reported_at_exit(sim, tmp_path):
    """The report lists each allocation that was never freed, and what was violated."""
    report = tmp_path / "report"
    sim.lines(
        """
        x, y = alloc(100), alloc(200)
        ok(hip.hipFree(x))
        ok(hip.hipFree(0))
        hip.hipFree(x)
        """,
        HIPSIM_REPORT=report,
    )
    lines = report.read_text().splitlines()
    assert lines[0].startswith("hipsim: double free of 0x")
    assert lines[1] == "hipsim: leak: 1 allocations of device 0, 200 bytes"
    assert lines[2].startswith("hipsim: leak: allocation 2 of device 0: 200 bytes at 0x")
    assert len(lines) == 3


def test_damage_is_found_at_exit(sim, tmp_path):
    """A program that never synchronises is checked when it ends."""
    report = tmp_path / "report"
    sim.lines(
        """
        m = Module()
        y = alloc(400)
        m.write_behind(1, 1, ctypes.c_void_p(y), i32(100), i32(0), on=stream())
        """,
        HIPSIM_REPORT=report,
    )
    assert "kernel write_behind wrote outside of an allocation" in report.read_text()


def test_pinned_memory_is_shared_with_kernels(sim):
    """A kernel reads and writes pinned memory in place; freed, neither side can use it."""
    done = sim.run("""
        m = Module()
        x, address = pinned(16)
        x[:] = 1
        m.add_one(1, 16, ctypes.c_void_p(address), i32(16))
        ok(hip.hipDeviceSynchronize())
        print(x.tolist() == [2.0] * 16)
        ok(hip.hipHostFree(address))
        sys.stdout.flush()
        x[0] = 3
    """)
    assert done.stdout == "True\n"
    assert done.returncode == -signal.SIGSEGV
    assert "host code touched pinned memory" in done.stderr
    assert "at byte 0 of the freed allocation 1 of pinned host memory (64 bytes" in done.stderr


def test_pointer_attributes(sim):
    """Pointers are told apart: device, pinned, managed, registered and ordinary memory."""
    lines = sim.lines("""
        x = np.zeros(100)
        d, (p, address) = alloc(8), pinned(4)
        g = int(ok(hip.hipMallocManaged(8, 1)))
        def kind(a):
            error, attributes = hip.hipPointerGetAttributes(a)
            return attributes.type.name if int(error) == 0 else error.name
        print(kind(d), kind(address), kind(g), kind(x.ctypes.data))
        ok(hip.hipHostRegister(x, x.nbytes, 0))
        print(kind(x.ctypes.data), name(hip.hipHostRegister(x, x.nbytes, 0)))
        ok(hip.hipHostUnregister(x))
        print(kind(x.ctypes.data), name(hip.hipHostUnregister(x)))
        ok(hip.hipFree(d))
        print(kind(d))
    """)
    assert lines == [
        "hipMemoryTypeDevice hipMemoryTypeHost hipMemoryTypeManaged hipMemoryTypeUnregistered",
        "hipMemoryTypeHost hipErrorHostMemoryAlreadyRegistered",
        "hipMemoryTypeUnregistered hipErrorHostMemoryNotRegistered",
        "hipErrorInvalidValue",
    ]


def test_peers(sim):
    """One device reaches another's memory by peer copies, and in kernels with peer access only."""
    lines = sim.lines(
        """
        m = Module()
        mine = alloc(4)
        ok(hip.hipSetDevice(1))
        theirs = upload(np.full(1, 5, np.float32))
        ok(hip.hipSetDevice(0))
        print(ok(hip.hipDeviceCanAccessPeer(0, 1)))
        ok(hip.hipMemcpyPeer(mine, 0, theirs, 1, 4))
        print(download(mine, 1)[0])
        print(name(hip.hipDeviceEnablePeerAccess(1, 0)), name(hip.hipDeviceEnablePeerAccess(1, 0)))
        m.add_one(1, 1, ctypes.c_void_p(theirs), i32(1))
        ok(hip.hipDeviceSynchronize())
        print(download(theirs, 1)[0])
        ok(hip.hipDeviceDisablePeerAccess(1))
        m.add_one(1, 1, ctypes.c_void_p(theirs), i32(1))
        print(name(hip.hipDeviceSynchronize()), last_report())
        """,
        HIPSIM_DEVICES=2,
    )
    assert lines[:4] == [
        "1",
        "5.0",
        "hipSuccess hipErrorPeerAccessAlreadyEnabled",
        "6.0",
    ]
    assert lines[4].startswith("hipErrorIllegalAddress")
    assert lines[4].endswith("which device 0 may only touch with peer access")


def test_misaligned_access(sim):
    """A vector at an address that is no multiple of its size is a fault, found where it happens."""
    code = """
        m = Module()
        x, y = upload(np.arange(8, dtype=np.float32)), upload(np.zeros(8, np.float32))
        m.copy_packs(1, 1, *map(ctypes.c_void_p, (y, x)), *map(i32, {places}))
        print(name(hip.hipDeviceSynchronize()), last_report())
        print(name(hip.hipMalloc(4)))
        """
    assert sim.lines(code.format(places=(4, 0))) == ["hipSuccess ", "hipSuccess"]
    for places, what in ((0, 2), "load"), ((1, 4), "store"):
        found, later = sim.lines(code.format(places=places))
        assert re.fullmatch(
            r"hipErrorLaunchFailure kernel copy_packs, block \(0,0,0\), thread \(0,0,0\): "
            rf"a misaligned {what} of .*float.* at 0x[0-9a-f]+, which is no multiple of 16",
            found,
        )
        assert later == "hipErrorLaunchFailure"
