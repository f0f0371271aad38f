"""Products on the simulated GPU through the simulated rocBLAS, against f64 products by numpy."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest

from propolis import Config
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis_rocm_blas.handle import Handle
from propolis_rocm_blas.implementations import implementations
from propolis_rocm_blas.multiplier import ONES
from propolis_rocm_blas.multiplier import workspace_for
from propolis_rocm_blas.ops_matmul import FEW_ROWS
from propolis_rocm_hip._ffi import native
from propolis_rocm_hip.device import RocmProvider


UNIT = {dtypes.f64: 2.0**-53, dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}


def normal(dtype, *shape, seed=0):
    """Random numbers of a dtype."""
    return np.random.default_rng([seed, *shape]).normal(0, 0.5, shape).astype(dtype.numpy)


def judge(actual, a, b, dtype, bias=0.0):
    """The sum is rounded once to the dtype, and loses little before."""
    a, b, bias = (np.asarray(x).astype(np.float64) for x in (a, b, bias))
    expected = a @ b + bias
    wide = UNIT[dtypes.f64 if dtype is dtypes.f64 else dtypes.f32]
    allowed = 1.25 * UNIT[dtype] * np.abs(expected) + 2.0**-24 * (dtype is dtypes.f16)
    allowed += 32 * wide * (np.abs(a) @ np.abs(b) + np.abs(bias))
    assert expected.shape == actual.shape
    assert (np.abs(actual.astype(np.float64) - expected) <= allowed).all()


@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_linear(rocm, dtype) -> None:
    """A linear layer, with a bias that joins before the one rounding, and without."""
    x, w, bias = normal(dtype, 2, 11, 33), normal(dtype, 7, 33, seed=1), normal(dtype, 7, seed=2)
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    judge(ops.linear(*given).numpy(), x, w.T, dtype, bias)
    judge(ops.linear(*given[:2]).numpy(), x, w.T, dtype)
    judge(
        ops.linear(given[0].transpose(0, 1), *given[1:]).numpy(), x.swapaxes(0, 1), w.T, dtype, bias
    )


def test_a_bias_rounds_once(rocm) -> None:
    """What a sum and a bias lose together is one rounding: their difference survives in f16."""
    x = np.full((9, 1), 2049, np.float16)  # 2048
    x[:] = 2048
    terms = np.concatenate([x, np.ones((9, 1), np.float16)], 1)
    w, bias = np.ones((3, 2), np.float16), np.full(3, -2048, np.float16)
    out = ops.linear(*(Tensor.from_numpy(a, rocm) for a in (terms, w, bias)))
    assert (out.numpy() == 1).all()


def test_bias_of_any_stride_and_many_rows(rocm) -> None:
    """A bias that lies apart, over more rows than there are ones."""
    rows = 2 * ONES + 3
    x, w, wide = normal(dtypes.f32, rows, 2), normal(dtypes.f32, 3, 2), normal(dtypes.f32, 3, 4)
    on = [Tensor.from_numpy(a, rocm) for a in (x, w, wide)]
    judge(
        ops.linear(on[0], on[1], on[2].narrow(1, 1, 1).squeeze(1)).numpy(),
        x,
        w.T,
        dtypes.f32,
        wide[:, 1],
    )
    infinite = Tensor.from_numpy(np.float32([np.inf, -np.inf, np.nan]), rocm)
    found = ops.linear(on[0].narrow(0, 0, 9), on[1], infinite).numpy()
    assert np.array_equal(
        found, np.tile(np.float32([np.inf, -np.inf, np.nan]), (9, 1)), equal_nan=True
    )


def test_matmul_of_views(rocm) -> None:
    """Batches, heads in the middle, either operand transposed, one operand for all."""
    q, k = normal(dtypes.f32, 2, 9, 3, 8), normal(dtypes.f32, 2, 10, 3, 8, seed=1)
    on = [Tensor.from_numpy(a, rocm) for a in (q, k)]
    scores = ops.matmul(on[0].permute(0, 2, 1, 3), on[1].permute(0, 2, 3, 1))
    judge(scores.numpy(), q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), dtypes.f32)
    one = ops.matmul(
        on[0].permute(0, 2, 3, 1),
        on[1].narrow(0, 0, 1).squeeze(0).narrow(1, 0, 1).squeeze(1).narrow(0, 0, 9),
    )
    judge(one.numpy(), q.transpose(0, 2, 3, 1), k[0, :9, 0], dtypes.f32)


def test_few_rows_go_last(rocm) -> None:
    """Up to 8 rows are declined by what goes before the kernels, and taken by what goes behind."""
    first, last = [i for i in implementations(rocm) if i.op == "linear"]
    w = Tensor.from_numpy(normal(dtypes.f32, 5, 16), rocm)
    few, many = (
        Tensor.from_numpy(normal(dtypes.f32, n, 16), rocm) for n in (FEW_ROWS, FEW_ROWS + 1)
    )
    assert first.priority > 100 > last.priority
    assert "read each weight once" in first.supports(few, w)
    assert [None] * 3 == [first.supports(many, w), last.supports(few, w), last.supports(many, w)]
    judge(ops.linear(few, w).numpy(), few.numpy(), w.numpy().T, dtypes.f32)


def test_what_blas_cannot_say_is_left_to_others(rocm) -> None:
    """With nobody else there the reason is in the error: the strides that are in the way."""
    wide = Tensor.from_numpy(normal(dtypes.f32, 2, 9, 8), rocm)
    # Every second column of every row.
    odd = wide.unflatten(2, 2).narrow(3, 0, 1).squeeze(3)
    with pytest.raises(Exception, match=r"strides \(8, 2\) of \(18, 4\), and BLAS needs 1"):
        ops.linear(odd, Tensor.from_numpy(normal(dtypes.f32, 5, 4), rocm))


def test_a_captured_step(rocm, simulator) -> None:
    """A step is one graph: replayed, rocBLAS is not asked again, and new numbers are taken."""
    x, w, bias = (Tensor.from_numpy(normal(dtypes.f16, *s), rocm) for s in ((9, 16), (5, 16), (5,)))
    out, other_out = rocm.empty((9, 5), dtypes.f16), rocm.empty((9, 5), dtypes.f16)
    with capture(rocm) as graph:
        ops.linear.into(other_out, x, w)
        ops.linear.into(out, x, w, bias)
    graph.replay()
    asked = simulator.hipsim_rocblas_count(b"gemm")
    other = normal(dtypes.f16, 9, 16, seed=5)
    rocm.copy_in(x.storage, 0, other.view(np.uint8).reshape(-1))
    graph.replay()
    judge(out.numpy(), other, w.numpy().T, dtypes.f16, bias.numpy())
    assert simulator.hipsim_rocblas_count(b"gemm") == asked


def test_threads(rocm) -> None:
    """Threads share the handle, one at a time; the simulator refuses two at once."""
    x, w = normal(dtypes.f32, 12, 16), normal(dtypes.f32, 5, 16, seed=1)
    on = [Tensor.from_numpy(a, rocm) for a in (x, w)]
    found = []

    def work():
        found.extend(ops.linear(*on) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for out in found:
        judge(out.numpy(), x, w.T, dtypes.f32)


def test_a_handle_goes_with_its_device(rocm) -> None:
    """The handle is the device's own; both are let go, with the memory they held."""
    assert rocm.keep(Handle) is rocm.keep(Handle)
    rocm.synchronize()
    gc.collect()
    live = native("hipsim_count")
    live.restype = ctypes.c_longlong
    before = live(b"live")
    device = RocmProvider(Config.load()).open(0)
    made = weakref.ref(device.keep(Handle))
    assert rocm.keep(Handle) is not made()
    device.synchronize()
    assert live(b"live") - before >= workspace_for(device.properties.arch)
    del device
    gc.collect()
    assert made() is None
    assert live(b"live") == before


TWO = """
import os
import numpy as np
from propolis import Config, Runtime, Tensor, ops
from propolis.errors import DeviceLostError
runtime = Runtime.start(Config())
x = np.arange(256, dtype=np.float32).reshape(16, 16)
on = [Tensor.from_numpy(x, runtime.device(f"rocm:{i}")) for i in (0, 1)]
for _ in range(2):
    print(*(np.array_equal(ops.matmul(t, t).numpy(), x @ x) for t in on))
if not (child := os.fork()):
    try:
        ops.matmul(on[0], on[0])
    except DeviceLostError as exc:
        os._exit(7 if "forked" in str(exc) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(np.array_equal(ops.matmul(on[1], on[1]).numpy(), x @ x))
"""


def test_two_devices_and_a_fork(python) -> None:
    """Each device has a handle of its own; a forked process has none, and says so."""
    done = python("-W", "ignore", "-c", TWO, HIPSIM_DEVICES="2", PROPOLIS_FALLBACK="error")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True", "True True", "7", "True"]
