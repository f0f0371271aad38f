"""What goes wrong with MIOpen ends in a call that others serve, and in a line that says so."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import vendor
from structlog.testing import capture_logs

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceError
from propolis.errors import PluginError
from propolis_rocm_miopen.errors import error_for


X = np.random.default_rng(3).normal(0, 1, (1, 3, 7, 6)).astype(np.float32)
W = np.random.default_rng(4).normal(0, 1, (4, 3, 3, 3)).astype(np.float32)


@pytest.fixture
def worker(rocm, simulator, environ, tmp_path, monkeypatch):
    """
    A worker of its own on the simulated GPU, where the CPU may take over.

    It gives a function that convolves and says who serves the next call.
    """
    # What is quarantined here stays here; what probes have said is known.
    shutil.copytree(environ["XDG_CACHE_HOME"], tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runtime = Runtime.start(Config(fallback="allow"))
    device = runtime.device("rocm")

    def convolution(x=X):
        expected = ops.conv2d(Tensor.from_numpy(x), Tensor.from_numpy(W)).numpy()
        out = ops.conv2d(Tensor.from_numpy(x, device), Tensor.from_numpy(W, device))
        assert np.allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
        trace = DispatchTable.of(device).trace(ops.conv2d, (dtypes.f32,))
        return {(v.impl.provenance.plugin, v.impl.variant): v.reason for v in trace.verdicts}

    with vendor.default(runtime):
        yield convolution


def test_once_is_no_proof(worker, simulator) -> None:
    """A status that does not come again costs a second try, and nobody his place."""
    worker()
    simulator.hipsim_miopen_inject(b"convolution", b"1:7")
    assert "highest priority" in worker()["rocm_miopen", ""]
    assert simulator.hipsim_miopen_count(b"convolution") == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (5, "miopenStatusInternalError (5); MIOpen failed within"),
        (4, "miopenStatusAllocFailed (4); MIOpen has too little memory"),
        (6, "miopenStatusNotImplemented (6); this MIOpen lacks it"),
        (3, "miopenStatusBadParm (3); a bug in propolis-rocm-miopen"),
    ],
)
def test_a_status_in_the_middle(worker, simulator, status, words) -> None:
    """The call is served by others, and the ladder shows the call, its shapes and the remedy."""
    worker()
    simulator.hipsim_miopen_inject(b"convolution", f"1+:{status}".encode())
    reason = worker()["rocm_miopen", ""]
    assert "quarantined" in reason
    assert "rocm:0: miopenConvolutionForwardImmediate of conv f32 1x3x7x6 by 4x3x3x3" in reason
    assert words in reason


def test_a_solution_that_does_not_compile(worker, simulator) -> None:
    """The next one is taken, nobody is at fault, and a line says which it was."""
    simulator.hipsim_miopen_inject(b"compile", b"1:5")
    with capture_logs() as logged:  # of a shape that no other test has asked about
        assert "highest priority" in worker(X[:, :, 1:])["rocm_miopen", ""]
    (line,) = (entry for entry in logged if entry["event"] == "miopen.not_compiled")
    assert "miopenConvolutionForwardCompileSolution" in line["reason"]


def test_no_solution_compiles(worker, simulator) -> None:
    """A shape that MIOpen can do nothing for is declined, and the next shape is asked about."""
    simulator.hipsim_miopen_inject(b"compile", b"1+:5")
    with capture_logs() as logged:
        assert "highest priority" in worker(X[:, :, 2:])["rocm_miopen", ""]
    said = [entry["solution"] for entry in logged if entry["event"] == "miopen.not_compiled"]
    assert said
    assert len(said) == len(set(said))  # once for each, not for each shape


def test_errors() -> None:
    """What is ours to mend is a plugin's error; what may be over the next time is the device's."""
    assert isinstance(error_for("rocm:0", "call", 3), PluginError)
    assert isinstance(error_for("rocm:0", "call", 7), DeviceError)
    assert "miopenStatusUnknown (99)" in str(error_for("rocm:0", "call", 99))


def test_rocblas_has_no_machine_code(propolis, tmp_path) -> None:
    """
    MIOpen's GEMM solutions would abort: a child finds out, and the others go on serving.

    The line of `explain` says so; the call is right.
    """
    (tmp_path / "empty").mkdir()
    lacking = {"ROCBLAS_TENSILE_LIBPATH": str(tmp_path / "empty")}
    told = propolis("explain", "conv2d", "--device", "rocm:0", **lacking)
    assert told.returncode == 0, told.stderr
    assert "winner: rocm_miopen" in told.stdout
    assert "without its GEMM solutions, as rocBLAS fails on this device" in told.stdout
    assert '"instead": "its solutions without rocBLAS"' in told.stderr


def test_miopen_fails_in_the_trial(propolis, tmp_path) -> None:
    """Where no convolution is right, MIOpen is rejected, with its status and what to install."""
    failing = {"HIPSIM_FAIL_CONVOLUTION": "1+:7", "XDG_CACHE_HOME": str(tmp_path)}
    told = propolis("explain", "conv2d", "--device", "rocm:0", **failing)
    (line,) = [s for s in told.stdout.splitlines() if s.startswith("  rejected: rocm_miopen")]
    assert "fails at a convolution of 1 x 4 x 8 x 8 on rocm:0 (hipsim32)" in line
    assert "miopenStatusUnknownError" in line
    (said,) = [s for s in told.stderr.splitlines() if "rocm.library_fails" in s]
    assert '"library": "MIOpen"' in said
    assert "miopenStatusUnknownError" in said
    assert "last rung, with copies: cpu: cpu_ref" in told.stdout


def test_the_ladder(propolis) -> None:
    """With all plugins MIOpen goes first, the kernels next, its naive solutions, then the CPU."""
    everyone = {"PROPOLIS_PLUGINS": "rocm_hip,rocm_miopen,rocm_kernels"}
    told = propolis("explain", "conv2d", "--dtype", "f16", "--device", "rocm:0", **everyone)
    lines = [line.strip() for line in told.stdout.splitlines()]
    order = [line.partition(" (")[0] for line in lines if line.startswith(("winner", "standby"))]
    plugins = ["winner: rocm_miopen", *(f"standby: {name}" for name in ("rocm_miopen",))]
    kernels = ["standby: rocm_kernels"] * 2  # on matrix instructions, and others
    assert order == [*plugins, *kernels, "standby: rocm_miopen"], lines
    assert any(line.startswith("last rung, with copies: cpu: cpu_ref") for line in lines)


def test_a_lost_device(python, tmp_path) -> None:
    """A device that fails for good is lost, whatever number MIOpen makes of it."""
    done = python(
        "-c",
        """
import numpy as np
from propolis import Config, Runtime, Tensor, ops
from propolis.errors import DeviceLostError
device = Runtime.start(Config()).device("rocm")
x = Tensor.from_numpy(np.ones((1, 2, 8, 8), np.float32), device)
w = Tensor.from_numpy(np.ones((2, 2, 3, 3), np.float32), device)
try:
    for _ in range(9):
        ops.conv2d(x, w)
        device.synchronize()
except DeviceLostError as exc:
    print("lost", exc)
""",
        HIPSIM_DEVICE_LOST="5",
        XDG_CACHE_HOME=str(tmp_path),  # the next process there waits for each call
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lost"), done.stdout + done.stderr


def test_a_convolution_that_miopen_has_no_words_for(rocm, on, monkeypatch) -> None:
    """Where it refuses to offer anything, the call is declined with its status, and not failed."""
    from propolis_rocm_miopen import handle as handles
    from propolis_rocm_miopen.ops_conv import implementations

    def refused(self, given, descriptors=None):
        self._expect(f"miopenConvolutionForwardGetSolution of {given}", 3)

    monkeypatch.setattr(handles.Handle, "offers", refused)
    takes = next(impl.supports for impl in implementations(rocm) if impl.op == "conv2d")
    reason = takes(on(dtypes.f32, 1, 3, 5, 19), on(dtypes.f32, 4, 3, 2, 3))
    assert "miopenConvolutionForwardGetSolution of conv f32 1x3x5x19" in reason
    assert "miopenStatusBadParm (3)" in reason
