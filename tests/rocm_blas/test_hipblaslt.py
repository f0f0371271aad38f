"""Products through the simulated hipBLASLt: where it is chosen, and where rocBLAS has no code."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import vendor

from propolis import Config
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import FallbackError
from propolis.errors import PluginError
from propolis_rocm_blas import _ffi_lt
from propolis_rocm_blas import doctor
from propolis_rocm_blas import handle_lt
from propolis_rocm_blas import probe
from propolis_rocm_blas._offers import multiplier
from propolis_rocm_blas.handle_lt import HandleLt
from propolis_rocm_blas.implementations import implementations
from propolis_rocm_blas.ops_matmul import matmul_by
from propolis_rocm_hip.device import RocmProvider


UNIT = {dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}


@pytest.fixture(scope="session")
def chosen(environ):
    """An environment that chooses hipBLASLt, and a runtime in it."""
    wanting = {**environ, "PROPOLIS_BLAS": "hipblaslt"}
    return wanting, vendor.opened(wanting)


@pytest.fixture
def device(chosen, monkeypatch):
    """A simulated GPU on which hipBLASLt alone serves."""
    environ, runtime = chosen
    vendor.settle(environ, monkeypatch)
    with vendor.default(runtime):
        yield runtime.device("rocm")


@pytest.fixture
def simulator(device):
    """The simulated library itself, for what tests ask of it; faults end with the test."""
    library = ctypes.CDLL(str(_ffi_lt.library().path))
    library.hipsim_hipblaslt_count.restype = ctypes.c_longlong
    yield library
    for fault in (b"matmul", b"algorithm"):
        library.hipsim_hipblaslt_inject(fault, b"0")


def normal(dtype, *shape, seed=0):
    """Random numbers of a dtype."""
    return np.random.default_rng([seed, *shape]).normal(0, 0.5, shape).astype(dtype.numpy)


def judge(actual, a, b, dtype, bias=0.0):
    """The sum is rounded once to the dtype, and loses little before."""
    a, b, bias = (np.asarray(x).astype(np.float64) for x in (a, b, bias))
    expected = a @ b + bias
    allowed = 1.25 * UNIT[dtype] * np.abs(expected) + 2.0**-24
    allowed += 32 * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(bias))
    assert expected.shape == actual.shape
    assert (np.abs(actual.astype(np.float64) - expected) <= allowed).all()


@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_linear(device, simulator, dtype) -> None:
    """A linear layer by hipBLASLt, with a bias that joins before the one rounding."""
    x, w, bias = normal(dtype, 2, 11, 33), normal(dtype, 7, 33, seed=1), normal(dtype, 7, seed=2)
    given = [Tensor.from_numpy(a, device) for a in (x, w, bias)]
    before = simulator.hipsim_hipblaslt_count(b"matmul")
    judge(ops.linear(*given).numpy(), x, w.T, dtype, bias)
    assert simulator.hipsim_hipblaslt_count(b"matmul") == before + 2


def test_matmul_of_views(device) -> None:
    """Batches that lie apart, heads in the middle, either operand transposed, one for all."""
    q, k = normal(dtypes.f32, 2, 9, 3, 8), normal(dtypes.f32, 2, 10, 3, 8, seed=1)
    on = [Tensor.from_numpy(a, device) for a in (q, k)]
    scores = ops.matmul(on[0].permute(0, 2, 1, 3), on[1].permute(0, 2, 3, 1))
    judge(scores.numpy(), q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), dtypes.f32)
    one = on[1].narrow(0, 0, 1).squeeze(0).narrow(1, 0, 1).squeeze(1).narrow(0, 0, 9)
    found = ops.matmul(on[0].permute(0, 2, 3, 1), one)
    judge(found.numpy(), q.transpose(0, 2, 3, 1), k[0, :9, 0], dtypes.f32)


def test_what_it_is_offered_for(device) -> None:
    """No f64, no promise of equal bits; the name says which library it is."""
    found = [i for i in implementations(device) if i.op == "matmul"]
    assert ["hipblaslt", "few-rows-hipblaslt"] == [i.variant for i in found]
    assert {dtypes.f32, dtypes.f16, dtypes.bf16} == set(found[0].dtypes)
    assert not found[0].deterministic
    assert "by hipBLASLt" in found[0].notes


def test_a_captured_step(device, simulator) -> None:
    """A step is one graph: replayed, hipBLASLt is not asked again, and new numbers are taken."""
    x, w = (Tensor.from_numpy(normal(dtypes.f16, *s), device) for s in ((9, 16), (5, 16)))
    out, other_out = device.empty((9, 5), dtypes.f16), device.empty((9, 5), dtypes.f16)
    with capture(device) as graph:
        ops.linear.into(other_out, x, w)
        ops.linear.into(out, x, w)
    graph.replay()
    asked = simulator.hipsim_hipblaslt_count(b"matmul")
    other = normal(dtypes.f16, 9, 16, seed=5)
    device.copy_in(x.storage, 0, other.view(np.uint8).reshape(-1))
    graph.replay()
    judge(out.numpy(), other, w.numpy().T, dtypes.f16)
    assert simulator.hipsim_hipblaslt_count(b"matmul") == asked


def test_more_products_than_are_kept(device, monkeypatch) -> None:
    """Descriptors of many shapes are let go and made anew; each product is its own."""
    monkeypatch.setattr(handle_lt, "MOST_PLANNED", 2)
    by = device.keep(HandleLt)
    by._planned.clear()
    for _ in range(2):
        for rows in (9, 10, 11):
            x = normal(dtypes.f32, rows, rows)
            a = Tensor.from_numpy(x, device)
            judge(ops.matmul(a, a).numpy(), x, x, dtypes.f32)
            assert 1 <= len(by._planned) <= 2


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (6, DeviceError, "HIPBLAS_STATUS_INTERNAL_ERROR (6); hipBLASLt failed within"),
        (7, PluginError, "HIPBLAS_STATUS_NOT_SUPPORTED (7); this hipBLASLt lacks it"),
        (3, PluginError, "HIPBLAS_STATUS_INVALID_VALUE (3); a bug in propolis-rocm-blas"),
    ],
)
def test_a_status(device, simulator, status, kind, words) -> None:
    """A call that fails says what was asked, with the status's name and what helps."""
    x = Tensor.from_numpy(normal(dtypes.f32, 12, 12), device)
    out = device.empty((12, 12), dtypes.f32)
    by = device.keep(HandleLt)
    matmul_by(by, out, x, x)
    simulator.hipsim_hipblaslt_inject(b"matmul", f"1:{status}".encode())
    with pytest.raises(kind) as caught:
        matmul_by(by, out, x, x)
    assert "rocm:0: hipblasLtMatmul of f32, 12 x 12 by 12 x 12" in str(caught.value)
    assert words in str(caught.value)


def test_a_choice_stands(device, monkeypatch) -> None:
    """What serves a device is found out once: a rocBLAS that fails for a while leaves it so."""
    monkeypatch.setenv("PROPOLIS_BLAS", "auto")
    asked = []

    def refusal(library, gpu):
        asked.append((library.name, gpu.id))
        return "no memory" if asked == [("rocBLAS", "rocm:0")] else ""

    monkeypatch.setattr(probe, "refusal", refusal)
    other = RocmProvider(Config.load()).open(0)
    for _ in range(2):
        assert {"by hipBLASLt, sums in f32 or wider; as no memory"} == {
            i.notes for i in implementations(other) if i.op != "qmatmul"
        }
    assert isinstance(multiplier(other.empty((1,), dtypes.f32)), HandleLt)
    assert [("rocBLAS", "rocm:0"), ("hipBLASLt", "rocm:0")] == asked
    assert other.keep(HandleLt) is not device.keep(HandleLt)


@pytest.mark.slow
def test_where_rocblas_has_no_code(propolis, tmp_path) -> None:
    """A card that rocBLAS has no code for is served by hipBLASLt, and doctor says so."""
    told = propolis(
        *("explain", "matmul", "--device", "rocm:0"), ROCBLAS_TENSILE_LIBPATH=str(tmp_path)
    )
    assert told.returncode == 0, told.stderr
    assert "winner: rocm_blas (propolis-rocm-blas 0.1.0) hipblaslt" in told.stdout
    assert "by hipBLASLt" in told.stdout


@pytest.mark.slow
def test_neither_has_code(propolis, tmp_path) -> None:
    """Where neither library has code both reasons are told, and nothing ends the process."""
    told = propolis(
        *("explain", "matmul", "--device", "rocm:0"),
        ROCBLAS_TENSILE_LIBPATH=str(tmp_path),
        HIPBLASLT_TENSILE_LIBPATH=str(tmp_path),
    )
    (line,) = [line for line in told.stdout.splitlines() if "rejected: rocm_blas" in line]
    assert f"rocBLAS error: Cannot read {tmp_path}/TensileLibrary.dat" in line
    assert f"rocblaslt error: Cannot read {tmp_path}/TensileLibrary_lazy_hipsim32.dat" in line
    assert (
        f"HIPBLASLT_TENSILE_LIBPATH names {tmp_path}, and it has files for none: unset it" in line
    )


def test_no_algorithm(device, monkeypatch, tmp_path) -> None:
    """A product that hipBLASLt has no kernel for is its lack, and no bug of ours."""
    monkeypatch.setenv("HIPBLASLT_TENSILE_LIBPATH", str(tmp_path))
    other = RocmProvider(Config.load()).open(0)
    x = Tensor.from_numpy(normal(dtypes.f32, 12, 12), other)
    with pytest.raises(PluginError, match=r"NOT_SUPPORTED \(7\); this hipBLASLt lacks it"):
        matmul_by(other.keep(HandleLt), other.empty((12, 12), dtypes.f32), x, x)


def test_a_product_that_it_lacks(device, simulator) -> None:
    """One that it knows no algorithm for is another's, with the reason; the rest stays its own."""
    x = normal(dtypes.f32, 13, 17)
    on = Tensor.from_numpy(x, device)
    known = device.keep(HandleLt)._planned
    for op, inputs in (
        (ops.matmul, (on, on.transpose(0, 1))),
        (ops.linear, (on, on, Tensor.from_numpy(x[:, 0].copy(), device))),
    ):
        known.clear()
        simulator.hipsim_hipblaslt_inject(b"algorithm", b"1")
        for _ in range(2):  # there is nobody else here
            with pytest.raises(FallbackError) as caught:
                op(*inputs)
            said = "hipblasLtMatmulAlgoGetHeuristic for f32, 13 x 17 by 17 x 13"
            assert str(caught.value).count(said) == 1
        known.clear()
        bias = 0.0 if len(inputs) == 2 else x[:, 0]
        judge(op(*inputs).numpy(), x, x.T, dtypes.f32, bias)


def test_doctor(device, monkeypatch, tmp_path) -> None:
    """Doctor says whether hipBLASLt is used, and where it should be and fails."""
    assert doctor.hipblaslt().summary.endswith("used on rocm:0 (hipsim32): a product is right")
    monkeypatch.setenv("PROPOLIS_BLAS", "auto")
    found = doctor.hipblaslt()
    assert "ok" == found.status
    assert found.summary.endswith("not used on rocm:0 (hipsim32): rocBLAS serves it")
    monkeypatch.setenv("PROPOLIS_BLAS", "rocblas")
    assert "not used: the setting blas is rocblas" in doctor.hipblaslt().summary
    monkeypatch.setenv("PROPOLIS_BLAS", "hipblaslt")
    monkeypatch.setenv("HIPBLASLT_TENSILE_LIBPATH", str(tmp_path))
    found = doctor.hipblaslt()
    assert "warning" == found.status
    assert "fails at a product of 4 x 4 on rocm:0 (hipsim32)" in found.summary
    assert found.remedy.startswith(f"HIPBLASLT_TENSILE_LIBPATH names {tmp_path}, and it has files")
