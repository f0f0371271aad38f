"""What goes wrong on hardware, on demand: each ends in a clear error, none in a hang."""

import pytest


LOST = ("DeviceLostError: rocm:0", "KernelFaultError: rocm:0")


def test_memory_runs_out_at_once(simulate):
    """The first allocation fails: an error with sizes, and the next one succeeds."""
    code = """
    failure(upload, np.zeros(1000, np.float32))
    print(upload(np.ones(3, np.float32)).numpy().tolist())
    """
    first, second = simulate(code, HIPSIM_FAIL_MALLOC="1").splitlines()
    # The segment did not fit; the exact size did not have to fail too.
    assert "OutOfMemoryError" in first or first == "no error"
    assert second == "[1.0, 1.0, 1.0]"


def test_memory_runs_out_for_good(simulate):
    """A small device: what fits fits, what does not is refused with the sizes, nothing is lost."""
    code = """
    kept = [upload(np.full(1 << 20, n, np.uint8)) for n in range(20)]
    failure(device.empty, (60 << 20,), dtypes.u8)
    print([int(t.numpy()[0]) for t in kept] == list(range(20)))
    del kept
    print(device.empty((60 << 20,), dtypes.u8).nbytes == 60 << 20)
    """
    first, second, third = simulate(code, HIPSIM_MEMORY=str(72 << 20)).splitlines()
    assert first.startswith("OutOfMemoryError: rocm:0: 60.0 MiB do not fit: ")
    assert "of 72.0 MiB are free, 20.0 MiB are in use by tensors here" in first
    assert (second, third) == ("True", "True")


def test_a_launch_that_fails(simulate):
    """It is reported where the host next hears of it, and the device is lost from then on."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    def step():
        run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)
        device.synchronize()
    step()
    failure(step)
    failure(x.numpy)
    failure(device.empty, (3,), dtypes.f32)
    failure(device.event)
    print(device.failure is not None)
    """
    first, *later, lost = simulate(code, HIPSIM_DEVICE_LOST="2").splitlines()
    assert first.startswith("KernelFaultError: rocm:0: ")
    assert "(719)" in first
    assert "start the process again" in first
    assert "it waits for each call" in first
    assert all(line.startswith("DeviceLostError: rocm:0 is lost: ") for line in later)
    assert len(later) == 3
    assert lost == "True"


@pytest.mark.slow
def test_a_launch_that_is_refused(simulate):
    """An error that is not sticky leaves the device as it was."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    def step():
        run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)
        device.synchronize()
    failure(step)
    step()
    print(x.numpy().tolist(), device.failure)
    """
    first, second = simulate(code, HIPSIM_FAIL_LAUNCH="1").splitlines()
    assert first.startswith("DeviceError: rocm:0: launch of scale (grid (1, 1, 1), block (64")
    assert "hipErrorLaunchOutOfResources (701)" in first
    assert second == "[2.0, 2.0, 2.0] None"


def test_a_device_that_is_lost(simulate):
    """Every later call says so at once; the process ends well."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    def step():
        run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)
        device.synchronize()
    failure(step)
    failure(step)
    failure(x.numpy)
    failure(upload, np.zeros(1))
    """
    lines = simulate(code, HIPSIM_DEVICE_LOST="1").splitlines()
    assert len(lines) == 4
    assert all(line.startswith(LOST) for line in lines)


@pytest.mark.slow
def test_a_kernel_that_writes_elsewhere(simulate):
    """An illegal address is a lost device, with the kernel's name where HIP knows it."""
    code = """
    x = upload(np.ones(3, np.float32))
    kernel("wild")((1, 1, 1), (1, 1, 1), 0, x.ptr)
    failure(device.synchronize)
    """
    said = simulate(code)
    assert said.startswith("KernelFaultError: rocm:0: hipStreamSynchronize: hipErrorIllegalAddress")


@pytest.mark.slow
def test_a_graph_on_a_lost_device(simulate):
    """A replay raises as any other call does."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    replay = device.record([lambda: run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)])
    def step():
        replay()
        device.synchronize()
    step()
    failure(step)
    failure(step)
    failure(device.record, [step])
    """
    lines = simulate(code, HIPSIM_DEVICE_LOST="3").splitlines()  # the recording counts too
    assert len(lines) == 3
    assert all(line.startswith(LOST) for line in lines)


@pytest.mark.slow
def test_memory_that_is_given_back_during_a_capture(simulate):
    """With direct allocations it waits until the capture is over; the graph is whole."""
    code = """
    x, garbage = upload(np.ones(3, np.float32)), [upload(np.ones(5, np.float32))]
    run = kernel("scale")
    def call():
        garbage.clear()
        run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)
    replay = device.record([call])
    replay()
    print(x.numpy().tolist(), device.pool.statistics().allocated)
    """
    assert simulate(code, PROPOLIS_DIRECT_ALLOCATIONS="1") == "[2.0, 2.0, 2.0] 12"


@pytest.mark.slow
def test_a_replay_that_is_refused(simulate):
    """An error that is not sticky leaves graph and device as they were."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    replay = device.record([lambda: run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)])
    failure(replay)
    replay()
    print(x.numpy().tolist())
    """
    first, second = simulate(code, HIPSIM_FAIL_LAUNCH="2").splitlines()
    assert first.startswith("DeviceError: rocm:0: hipGraphLaunch: hipErrorLaunchOutOfResources")
    assert second == "[2.0, 2.0, 2.0]"


@pytest.mark.slow
def test_copies_that_take_their_time(simulate):
    """Nothing is read before it has arrived, whatever order the streams take."""
    code = """
    rng = np.random.default_rng(1)
    for _ in range(20):
        a = rng.normal(size=1000).astype(np.float32)
        x = upload(a)
        y = device.empty((1000,), dtypes.f32)
        kernel("scale")((16, 1, 1), (64, 1, 1), 0, y.ptr, x.ptr, 1000, 2.0)
        a2 = a.copy()
        a[:] = np.nan
        assert np.array_equal(y.numpy(), 2 * a2)
    print("right")
    """
    assert simulate(code, HIPSIM_SLOW_COPIES="3000", HIPSIM_SHUFFLE="7") == "right"


@pytest.mark.slow
def test_nothing_leaks(simulate, tmp_path):
    """What a process took from HIP is given back, also what it held to its end."""
    code = """
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    replay = device.record([lambda: run((1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)])
    replay()
    event = device.event(timing=True)
    event.record()
    pinned = device.pinned_empty(1000)
    stream = device.new_stream()
    device.synchronize()
    print(x.numpy().tolist())
    """
    report = tmp_path / "report"
    assert simulate(code, HIPSIM_REPORT=str(report)) == "[2.0, 2.0, 2.0]"
    assert not report.exists() or report.read_text() == ""


@pytest.mark.slow
def test_a_process_that_forks(simulate):
    """HIP does not survive a fork: the child is told so instead of hanging, the parent works on."""
    code = """
    import os
    x = upload(np.ones(3, np.float32))
    run = kernel("scale")
    device.synchronize()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        failure(x.numpy)
        failure(run, (1, 1, 1), (64, 1, 1), 0, x.ptr, x.ptr, 3, 2.0)
        del x
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    print(x.numpy().tolist())
    """
    *child, parent = simulate(code).splitlines()
    assert len(child) == 2
    assert all("forked" in line and "'spawn' method" in line for line in child)
    assert parent == "[1.0, 1.0, 1.0]"
