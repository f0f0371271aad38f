"""The simulated rocBLAS: its arithmetic, its queueing, and what it is strict about."""

from __future__ import annotations

import os

import pytest


START = "import rocblas\nfrom rocblas import gemm, create, name as status\n"


def test_products(sim, warp) -> None:
    """Each combination of types, both operations, batches, alpha and beta: as numpy has them."""
    lines = sim.lines(
        START
        + """
import ml_dtypes
TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16}
rng = np.random.default_rng(1)
handle = create()
for kind, out in (("f64", "f64"), ("f32", "f32"), ("f16", "f16"), ("f16", "f32"),
                  ("bf16", "bf16"), ("bf16", "f32")):
    for trans in ((111, 111), (112, 111), (111, 112), (112, 112)):
        a = rng.integers(-4, 4, (3, 6, 5)).astype(TYPES[kind])  # batches of columns
        b = rng.integers(-4, 4, (3, 5, 6)).astype(TYPES[kind])
        c = rng.integers(-4, 4, (3, 5, 5)).astype(TYPES[out])
        if trans[0] == 112: a = np.ascontiguousarray(a.transpose(0, 2, 1))
        if trans[1] == 112: b = np.ascontiguousarray(b.transpose(0, 2, 1))
        d = upload(c)
        said = gemm(handle, (5, 5, 6), upload(a), upload(b), d, kind, out=out, trans=trans,
                    alpha=2.0, beta=-1.0, strides=(30, 30, 25), batches=3)
        x, y = (m.astype(np.float64).transpose(0, 2, 1) for m in (a, b))
        if trans[0] == 112: x = x.transpose(0, 2, 1)
        if trans[1] == 112: y = y.transpose(0, 2, 1)
        truth = 2 * (x @ y).transpose(0, 2, 1) - c.astype(np.float64)
        found = download(d, c.shape, c.dtype).astype(np.float64)
        truth = truth.astype(TYPES[out]).astype(np.float64)
        if said != "success" or not np.array_equal(found, truth):
            print(kind, out, trans, said, found, truth)
""",
        warp=warp,
    )
    assert lines == []


def test_what_it_refuses(sim) -> None:
    """A wrong call has rocBLAS's own status, and a line that says what is wrong."""
    done = sim.run(
        START
        + """
P = ctypes.c_void_p
m = upload(np.ones((8, 8), np.float32))
d = alloc(256)
handle = create()
def show(*a, **k): print(gemm(handle, *a, **k))
show((4, 4, 4), m, m, d, leading=(3, 4, 4))
show((4, 4, 4), m, m, d, leading=(4, 3, 4))
show((4, 4, 4), m, m, d, leading=(4, 4, 3))
show((4, 4, 8), m, m, d, trans=(112, 111), leading=(4, 8, 4))
show((-1, 4, 4), m, m, d, leading=(4, 4, 4))
show((0, 4, 4), 0, 0, 0, leading=(4, 4, 4))
show((4, 4, 4), 0, m, d)
show((4, 4, 4), m, m, 0)
show((4, 4, 4), m, m, d, trans=(110, 111), leading=(4, 4, 4))
show((4, 4, 4), m, m, d, kind="f16", compute=150)
show((4, 4, 4), m, m, d, ldc=5)
show((2, 2, 2), m, m, d, strides=(4, 4, 0), batches=2)
print(gemm(P(), (4, 4, 4), m, m, d), gemm(P(12345), (4, 4, 4), m, m, d))
print(status(rocblas.LIBRARY.rocblas_destroy_handle(handle)))
print(gemm(handle, (4, 4, 4), m, m, d), status(rocblas.LIBRARY.rocblas_destroy_handle(handle)))
""",
        warp=32,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("invalid_size",) * 5,
        "success",
        *("invalid_pointer",) * 2,
        "invalid_value",
        "not_implemented",
        *("invalid_value",) * 2,
        "invalid_handle invalid_handle",
        "success",
        "invalid_handle invalid_handle",
    ]
    assert (
        "rocblas_gemm_ex: rocblas_status_invalid_size: lda is 3, at least 4 is needed"
        in done.stderr
    )


def test_queue_workspace_and_capture(sim) -> None:
    """Products are queued and captured; a workspace is scribbled on, or allocated when it lacks."""
    lines = sim.lines(
        START
        + """
P = ctypes.c_void_p
stream = ok(hip.hipStreamCreateWithFlags(NON_BLOCKING))
handle = create(int(stream))
x = np.arange(16, dtype=np.float32).reshape(4, 4)
a, d, later = upload(x), alloc(64), upload(np.zeros((4, 4), np.float32))
workspace = upload(np.zeros(8192, np.uint8))
print(status(rocblas.LIBRARY.rocblas_set_workspace(handle, P(workspace), ctypes.c_size_t(8192))))
before = count("malloc")
print(gemm(handle, (4, 4, 4), a, a, d))
ok(hip.hipStreamSynchronize(stream))
print(count("malloc") - before, np.array_equal(download(d, (4, 4), np.float32), x @ x))
print(hex(download(workspace, (2048,), np.uint32)[-1]))
ok(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal))
print(gemm(handle, (4, 4, 4), a, a, later, strides=(0, 0, 16), batches=1))
graph = ok(hip.hipStreamEndCapture(stream))
print(download(later, (4, 4), np.float32).any())
ok(hip.hipGraphLaunch(ok(hip.hipGraphInstantiateWithFlags(graph, 0)), stream))
ok(hip.hipStreamSynchronize(stream))
print(np.array_equal(download(later, (4, 4), np.float32), x @ x))
own = create(int(stream))
before = count("malloc")
print(gemm(own, (4, 4, 4), a, a, d), count("malloc") - before)
print(gemm(own, (4, 4, 4), a, a + 4000, d))
print(hip.hipStreamSynchronize(stream)[0].name)
"""
    )
    assert lines == [
        *("success", "success", "0 True", "0x7ffafffa", "success", "False", "True"),
        *("success 1", "success", "hipErrorIllegalAddress"),
    ]


@pytest.mark.parametrize("made", ["first", "initialize"])
def test_no_code_for_the_architecture(sim, tmp_path, made) -> None:
    """A handle is made; the first product, or rocblas_initialize, aborts in rocBLAS's words."""
    act = {
        "first": "gemm(create(), (4, 4, 4), 1, 1, 1)",
        "initialize": "LIBRARY.rocblas_initialize()",
    }
    done = sim.run(
        START
        + f"""
from rocblas import LIBRARY
create()
print("made", flush=True)
{act[made]}
""",
        ROCBLAS_TENSILE_LIBPATH=tmp_path,
    )
    assert (done.returncode, done.stdout) == (-6, "made\n")
    assert f"rocBLAS error: Cannot read {os.fspath(tmp_path)}/TensileLibrary.dat" in done.stderr
    assert "for GPU arch : hipsim32" in done.stderr


def test_faults_and_versions(sim) -> None:
    """Injected statuses at the n-th product, or from it on; the version follows HIP's."""
    code = (
        START
        + """
handle, m = create(), upload(np.ones((4, 4), np.float32))
print(*(gemm(handle, (4, 4, 4), m, m, alloc(64)) for _ in range(4)))
print(status(rocblas.LIBRARY.rocblas_set_workspace(handle, None, 0)))
text = ctypes.create_string_buffer(64)
rocblas.LIBRARY.rocblas_get_version_string(text, 64)
print(text.value.decode())
"""
    )
    once = sim.lines(code, HIPSIM_FAIL_GEMM="2", HIPSIM_HIP_VERSION="6.4")
    assert once == ["success internal_error success success", "success", "4.4.0.hipsim"]
    lasting = sim.lines(code, HIPSIM_FAIL_GEMM="3+:5", HIPSIM_FAIL_WORKSPACE="1")
    assert lasting == ["success success memory_error memory_error", "memory_error", "5.2.0.hipsim"]
