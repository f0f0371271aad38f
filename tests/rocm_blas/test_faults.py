"""What goes wrong with rocBLAS ends in a call that others serve, and in a line that says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import vendor

from propolis import Config
from propolis import DeviceProperties
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceError
from propolis.errors import PluginError
from propolis_rocm_blas import libraries
from propolis_rocm_blas import multiplier
from propolis_rocm_blas import probe
from propolis_rocm_blas.errors import ROCBLAS
from propolis_rocm_blas.implementations import implementations


X = np.random.default_rng(3).normal(0, 1, (12, 16)).astype(np.float32)


@pytest.fixture
def worker(rocm, simulator, environ, tmp_path, monkeypatch):
    """
    A worker of its own on the simulated GPU, where the CPU may take over.

    It gives a function that computes a product and says who serves the next one.
    """
    # What is quarantined here stays here; what probes have said is known.
    shutil.copytree(environ["XDG_CACHE_HOME"], tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runtime = Runtime.start(Config(fallback="allow"))
    device = runtime.device("rocm")

    def product():
        x = Tensor.from_numpy(X, device)
        out = ops.matmul(x, x.transpose(0, 1))
        assert np.allclose(out.numpy(), X @ X.T, rtol=1e-4, atol=1e-4)
        trace = DispatchTable.of(device).trace(ops.matmul, (dtypes.f32,))
        return {(v.impl.provenance.plugin, v.impl.variant): v.reason for v in trace.verdicts}

    with vendor.default(runtime):
        yield product


def test_once_is_no_proof(worker, simulator) -> None:
    """A status that does not come again costs a second try, and nobody his place."""
    worker()
    simulator.hipsim_rocblas_inject(b"gemm", b"1:6")
    assert "highest priority" in worker()["rocm_blas", ""]
    assert simulator.hipsim_rocblas_count(b"gemm") == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (6, "rocblas_status_internal_error (6); rocBLAS failed within"),
        (5, "rocblas_status_memory_error (5); rocBLAS has too little memory"),
        (2, "rocblas_status_not_implemented (2); this rocBLAS lacks it"),
    ],
)
def test_a_status_in_the_middle(worker, simulator, status, words) -> None:
    """The call is served by others, and the ladder shows the call, its shapes and the remedy."""
    worker()
    simulator.hipsim_rocblas_inject(b"gemm", f"1+:{status}".encode())
    reason = worker()["rocm_blas", ""]
    assert "quarantined" in reason
    assert (
        "rocm:0: rocblas_gemm_ex of f32, 12 x 16 by 16 x 12 (leading dimensions 16 and 16)"
        in reason
    )
    assert words in reason


def test_workspace_refused(worker, simulator) -> None:
    """Without its workspace rocBLAS is not used: it would allocate in the middle of a step."""
    simulator.hipsim_rocblas_inject(b"workspace", b"1+")
    reason = worker()["rocm_blas", ""]
    assert "rocm:0: rocblas_set_workspace: rocblas_status_memory_error (5)" in reason


@pytest.mark.slow
def test_no_memory_for_the_workspace(worker, monkeypatch) -> None:
    """The same where the device has none; that is no error of the call."""
    monkeypatch.setattr(multiplier, "workspace_for", lambda _: 1 << 50)
    reason = worker()["rocm_blas", ""]
    assert "no memory for rocBLAS's workspace" in reason


def test_errors() -> None:
    """What is ours to mend is a plugin's error; what may be over the next time is the device's."""
    assert isinstance(ROCBLAS.error("rocm:0", "call", 4), PluginError)
    assert "a bug in propolis-rocm-blas" in str(ROCBLAS.error("rocm:0", "call", 1))
    assert isinstance(ROCBLAS.error("rocm:0", "call", 6), DeviceError)
    assert "unset that" in str(ROCBLAS.error("rocm:0", "call", 13))
    assert "rocblas_status_unknown (99)" in str(ROCBLAS.error("rocm:0", "call", 99))


@pytest.mark.slow
def test_no_machine_code(propolis, tmp_path) -> None:
    """
    The first product would abort: a child finds out, once, and the CPU serves the call.

    The line says what was found, which architectures there are files for, and what to install.
    """
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "TensileLibrary_lazy_gfx1030.dat").touch()
    lacking = {"ROCBLAS_TENSILE_LIBPATH": str(tmp_path / "empty"), "PROPOLIS_BLAS": "rocblas"}
    told = propolis("explain", "matmul", "--device", "rocm:0", **lacking)
    assert told.returncode == 0, told.stderr
    (line,) = [
        line
        for line in told.stdout.splitlines()
        if line.startswith("  rejected: rocm_blas (propolis-rocm-blas 0.1.0): ")
    ]
    assert (
        "fails at a product of 4 x 4 on rocm:0 (hipsim32): it ended the process (SIGABRT)" in line
    )
    assert f"rocBLAS error: Cannot read {tmp_path}/empty/TensileLibrary.dat" in line
    assert f"ROCBLAS_TENSILE_LIBPATH names {tmp_path}/empty, and it has files for gfx1030" in line
    (said,) = [s for s in told.stderr.splitlines() if "rocm.library_fails" in s]
    assert "SIGABRT" in said
    assert "last rung, with copies: cpu: cpu_ref" in told.stdout


def test_it_is_tried_once(runtime, rocm, monkeypatch, tmp_path) -> None:
    """A child is started where no answer is known, once for a library and an architecture."""
    from propolis_rocm_hip import trial

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started = []
    real = trial._attempt
    monkeypatch.setattr(trial, "_attempt", lambda *a: (started.append(a), real(*a))[1])
    assert ["", ""] == [probe.refusal(libraries.ROCBLAS, rocm.properties) for _ in range(2)]
    assert len(started) == 1
    monkeypatch.setenv("ROCBLAS_TENSILE_LIBPATH", str(tmp_path))
    assert ["SIGABRT" in probe.refusal(libraries.ROCBLAS, rocm.properties) for _ in range(2)] == [
        True,
        True,
    ]
    assert len(started) == 2


def test_one_gpu_of_two(rocm, monkeypatch, tmp_path) -> None:
    """A GPU without machine code declines what it cannot do, beside one that has it."""

    class Other:
        context = rocm.context
        properties = DeviceProperties("rocm", 1, "APU", "gfx1036")

        @classmethod
        def keep(cls, make):
            return make(cls)

    refused = {"hipsim32": "", "gfx1036": "no machine code"}
    monkeypatch.setattr(probe, "refusal", lambda _, gpu: refused[gpu.arch])
    monkeypatch.setenv("PROPOLIS_BLAS", "rocblas")
    assert {""} == {impl.unusable for impl in implementations(rocm)}
    assert {"no machine code"} == {impl.unusable for impl in implementations(Other)}


@pytest.mark.slow
def test_a_lost_device(python, tmp_path) -> None:
    """A device that fails for good is lost, whatever number rocBLAS makes of it."""
    done = python(
        "-c",
        """
import numpy as np
from propolis import Config, Runtime, Tensor, ops
from propolis.errors import DeviceLostError
device = Runtime.start(Config()).device("rocm")
x = Tensor.from_numpy(np.ones((16, 16), np.float32), device)
try:
    for _ in range(9):
        ops.matmul(x, x)
        device.synchronize()
except DeviceLostError as exc:
    print("lost", exc)
""",
        HIPSIM_DEVICE_LOST="5",
        XDG_CACHE_HOME=str(tmp_path),  # the next process there waits for each call
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lost"), done.stdout + done.stderr


def test_the_ladder(propolis) -> None:
    """With all plugins rocBLAS goes first, the kernels next, rocBLAS for few rows, then the CPU."""
    everyone = {"PROPOLIS_PLUGINS": "rocm_hip,rocm_blas,rocm_kernels"}
    told = propolis("explain", "matmul", "--dtype", "f16", "--device", "rocm:0", **everyone)
    lines = [line.strip() for line in told.stdout.splitlines()]
    rungs = [line for line in lines if line.startswith(("winner", "standby"))]
    # Tiles that measuring alone chooses have rungs too, behind the kernels that choose themselves.
    order = [line.partition(" (")[0] for line in rungs if ") tile" not in line]
    assert order == ["winner: rocm_blas", "standby: rocm_kernels", "standby: rocm_blas"], lines
    assert any(line.startswith("last rung, with copies: cpu: cpu_ref") for line in lines)


@pytest.mark.slow
def test_kernels_take_over(python) -> None:
    """A rocBLAS that fails in the middle of a step costs a line: the kernels do the rest of it."""
    done = python(
        "-c",
        """
import numpy as np
from propolis import Config, Runtime, Tensor, ops
device = Runtime.start(Config()).device("rocm")
x = Tensor.from_numpy(np.eye(16, dtype=np.float32), device)
for _ in range(4):
    x = ops.matmul(x, x)
assert np.array_equal(x.numpy(), np.eye(16))
""",
        PROPOLIS_PLUGINS="rocm_hip,rocm_blas,rocm_kernels",
        PROPOLIS_FALLBACK="error",
        HIPSIM_FAIL_GEMM="3+",
        XDG_CACHE_HOME=str(Path(__file__).parents[2] / "build" / "cache"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "op.quarantined" in line]
    assert "rocblas_status_internal_error (6)" in line
