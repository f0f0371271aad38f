"""
What a kernel launch costs on the host: our path, hip-python's own call, and a graph replay.

An empty kernel is queued again and again, the contenders taking turns, and the queue is
emptied outside the clock.  Needs a device: an AMD GPU, or the simulator
(``ROCM_PATH=build/hipsim/host``), where only the host's cost means something.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from typing import TYPE_CHECKING

from propolis import Config
from propolis.errors import PropolisError
from propolis_rocm_hip.device import RocmDevice
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_hip.modules import ModuleSource


if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCHES = 200
ROUNDS = 60

SOURCE = 'extern "C" __global__ void empty(float* y, const float* x, long long n, float f) {}'
MODULE = ModuleSource("bench_launch", {"empty": "PPqf"}, source=lambda: SOURCE, flags=("-O3",))
GRID, BLOCK = (1, 1, 1), (64, 1, 1)


def contenders(device: RocmDevice) -> dict[str, tuple[int, Callable[[], object]]]:
    """By name: how many kernels one call queues, and the call."""
    from rocm.bindings import hip

    empty = device.modules.function(MODULE, "empty")
    y, x = (device.memory.allocate(4096) for _ in range(2))
    packed = empty.struct.pack(y.ptr, x.ptr, 1024, 1.0)
    handle, stream = empty.handle, device.stream

    def ours() -> None:
        empty(GRID, BLOCK, 0, y.ptr, x.ptr, 1024, 1.0)

    def ours_packed() -> None:
        empty.launch(GRID, BLOCK, 0, packed)

    def hip_python() -> None:
        arguments = (
            ctypes.c_void_p(y.ptr),
            ctypes.c_void_p(x.ptr),
            ctypes.c_longlong(1024),
            ctypes.c_float(1.0),
        )
        (code,) = hip.hipModuleLaunchKernel(handle, *GRID, *BLOCK, 0, stream, None, arguments)
        assert not code  # noqa: S101

    step = device.record([ours] * LAUNCHES)
    assert step is not None  # noqa: S101
    return {
        "propolis, arguments packed at each launch": (1, ours),
        "propolis, arguments packed before": (1, ours_packed),
        "hip-python's hipModuleLaunchKernel": (1, hip_python),
        f"propolis, replay of a graph of {LAUNCHES}": (LAUNCHES, step),
    }


def main() -> None:
    """Print the table."""
    try:
        device = RocmProvider(Config.load()).open(0)
    except PropolisError as exc:
        print(f"no device: {exc}")
        return
    calls = contenders(device)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, (kernels, call) in calls.items():
            repeat = LAUNCHES // kernels
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            taken[name].append((time.perf_counter() - start) / LAUNCHES * 1e6)
            device.synchronize()
    print(f"{device!r}, Python {sys.version.split()[0]}")
    print(f"microseconds a kernel on the host, median and best of {ROUNDS} x {LAUNCHES} launches")
    for name, times in taken.items():
        print(f"  {statistics.median(times):6.2f}  {min(times):6.2f}  {name}")


if __name__ == "__main__":
    main()
