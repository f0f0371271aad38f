"""Weights in block formats, dequantised tile by tile and multiplied by rocBLAS."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import vendor

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Call
from propolis.dispatch import DispatchTable
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError
from propolis_rocm_blas import ops_quantized
from propolis_rocm_blas.implementations import implementations
from propolis_rocm_blas.ops_quantized import MANY_ROWS
from propolis_rocm_hip import space
from propolis_rocm_hip.space import Weights
from propolis_rocm_hip.space import space_bytes


K, N = 64, 48


@pytest.fixture(scope="session")
def with_kernels(hipsim, tmp_path_factory):
    """The environment and a runtime whose GPU has the kernels too, which dequantise."""
    environ = vendor.environment(
        hipsim, tmp_path_factory.mktemp("home"), "rocm_hip,rocm_blas,rocm_kernels"
    )
    # Compiled once a checkout: the cache knows what it was compiled from.
    environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[2] / "build" / "cache")
    return environ, vendor.opened(environ)


@pytest.fixture
def device(with_kernels, monkeypatch):
    """That GPU, on which neither the CPU nor a crash of another test takes part."""
    environ, runtime = with_kernels
    vendor.settle(environ, monkeypatch)
    with vendor.default(runtime):
        yield runtime.device("rocm")


@pytest.fixture
def weight(device):
    """A weight in q8_0, and its values in f64."""
    plain = np.random.default_rng(5).normal(0, 0.5, (N, K)).astype(np.float32)
    blocks = ops.quantize(Tensor.from_numpy(plain), dtypes.q8_0)
    return blocks.to(device), ops.dequantize(blocks).numpy().astype(np.float64)


def activations(device, dtype, *shape):
    """Random numbers on the device."""
    numbers = np.random.default_rng([7, *shape]).normal(0, 0.5, shape).astype(dtype.numpy)
    return Tensor.from_numpy(numbers, device)


def judge(actual, x, values):
    """Weights are rounded to the dtype of x, sums are f32, and the result is rounded once."""
    exact = x.numpy().astype(np.float64)
    truth, terms = exact @ values.T, np.abs(exact) @ np.abs(values.T)
    unit = {dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}[x.dtype]
    assert truth.shape == actual.shape
    allowed = 1.25 * unit * np.abs(truth) + (unit + 32 * 2.0**-24) * terms
    assert (np.abs(actual.astype(np.float64) - truth) <= allowed).all()


def server(x, w):
    """Who takes a product, and as what."""
    call = Call(ops.qmatmul, (x.dtype, w.dtype), (), (x, w), {})
    impl = DispatchTable.of(x.device).server(call).impl
    return impl.provenance.plugin, impl.variant


@pytest.mark.parametrize("dtype", MANY_ROWS, ids=str)
def test_many_rows(device, weight, dtype) -> None:
    """From so many rows on rocBLAS goes first, save where f32 may be rounded; and the product."""
    w, values = weight
    x = activations(device, dtype, MANY_ROWS[dtype], K)
    rounded = "rocm_kernels", "few-rows"
    assert server(x, w) == (rounded if dtype is dtypes.f32 else ("rocm_blas", "16-bit"))
    if dtype is dtypes.f32:
        settings = Config(plugins=["rocm_hip", "rocm_blas", "rocm_kernels"], numerics="exact")
        same = Runtime.start(settings).device(device.id)
        assert server(x.to(same), w.to(same)) == ("rocm_blas", "")
    offers = [i for i in implementations(device) if i.op == "qmatmul"]
    out = device.empty((MANY_ROWS[dtype], N), dtype)
    next(i for i in offers if dtype in i.dtypes["x"]).fn(out, x, w)
    judge(out.numpy(), x, values)


def test_the_bound_is_the_architectures(device, weight, monkeypatch) -> None:
    """From how many rows on is asked of the device's own architecture: a Radeon's is higher."""
    w, _ = weight
    bounds = {device.properties.arch: {dtypes.f16: 21}}
    monkeypatch.setattr(ops_quantized, "many_rows", bounds.__getitem__)
    offer = next(i for i in implementations(device) if i.op == "qmatmul" and i.variant == "16-bit")
    assert "20 rows" in offer.supports(activations(device, dtypes.f16, 20, K), w)
    assert offer.supports(activations(device, dtypes.f16, 21, K), w) is None


def test_fewer_rows_are_for_the_kernels(device, weight) -> None:
    """One row less goes to kernels that dequantise on the way, and the reason says from where."""
    w, _ = weight
    x = activations(device, dtypes.f16, MANY_ROWS[dtypes.f16] - 1, K)
    assert server(x, w)[0] == "rocm_kernels"
    offers = [i for i in implementations(device) if i.op == "qmatmul" and "16-bit" in i.variant]
    assert ["16-bit", "few-rows-16-bit"] == [i.variant for i in offers]
    assert (
        "15 rows are for kernels that dequantise on the way (in f16, 16 and more are not)"
        == offers[0].supports(x, w)
    )
    assert offers[1].supports(x, w) is None
    assert offers[1].priority < 100


def test_a_weight_larger_than_a_tile(device, weight, monkeypatch) -> None:
    """Tiles are columns of the output, of batches that lie apart as well; no column is left out."""
    monkeypatch.setattr(space, "TILE_BYTES", 20 * K * 2)
    monkeypatch.setattr(space, "_WIDTH", 16)
    w, values = weight
    x = activations(device, dtypes.f16, 2, 140, 2 * K).narrow(1, 2, 130).narrow(2, K, K)
    assert server(x, w)[0] == "rocm_blas"
    counted = []
    real = ops_quantized.run
    monkeypatch.setattr(ops_quantized, "run", lambda *a, **k: (counted.append(k), real(*a, **k)))
    found = ops.qmatmul(x, w)
    assert [range(16), range(16, 32), range(32, 48)] == [k["columns"] for k in counted]
    judge(found.numpy(), x, values)


def test_a_part_of_a_weight(device, weight) -> None:
    """Rows of a larger weight are taken where they lie."""
    w, values = weight
    x = activations(device, dtypes.bf16, MANY_ROWS[dtypes.bf16], K)
    judge(ops.qmatmul(x, w.narrow(0, 7, 11)).numpy(), x, values[7:18])


def test_threads(device, weight) -> None:
    """Threads dequantise in the same memory one after the other: each gets its own product."""
    parts = [(first, weight[0].narrow(0, first, 11)) for first in range(0, 33, 11)]
    x = activations(device, dtypes.f16, 16, K)
    found = []

    def work(first, w):
        found.extend((first, ops.qmatmul(x, w)) for _ in range(30))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, *zip(*parts, strict=True)))
    assert len(found) == 90
    for first, out in found:
        judge(out.numpy(), x, weight[1][first : first + 11])


@pytest.mark.slow
def test_a_captured_step(device, weight) -> None:
    """A step is one launch; its replays allocate nothing and take new activations."""
    w, values = weight
    x = activations(device, dtypes.f16, 130, K)
    out, sums = (device.empty((130, N), dtypes.f16) for _ in range(2))
    with capture(device) as graph:
        ops.qmatmul.into(out, x, w)
        ops.add.into(sums, out, out)
    assert graph._joined is not None
    assert len(graph._joined) == 1
    other = activations(device, dtypes.f16, 130, K, 1).squeeze(2)
    device.copy_in(x.storage, 0, other.numpy().view(np.uint8).reshape(-1))
    before = device.pool.statistics().allocated
    graph.replay()
    assert before == device.pool.statistics().allocated
    judge(out.numpy(), other, values)


def test_what_it_takes_of_memory(device, weight) -> None:
    """What is declared is the library's and a tile's; the tile's is kept for the next call."""
    w, _ = weight
    x = activations(device, dtypes.f32, MANY_ROWS[dtypes.f32], K)
    first = next(i for i in implementations(device) if i.op == "qmatmul")
    products = next(i for i in implementations(device) if i.op == "matmul")
    assert first.workspace(x, w) == products.workspace + space_bytes(N * K * 4)
    assert first.workspace(x, w.narrow(0, 0, 0)) == products.workspace
    first.fn(device.empty((MANY_ROWS[dtypes.f32], N), dtypes.f32), x, w)
    kept = device.keep(Weights)
    assert kept.reserve(device, 1) == kept.reserve(device, N * K * 4)


def test_no_memory(device, weight, monkeypatch) -> None:
    """Too little memory for a tile is no error of the call: others, who need none, serve it."""
    w, _ = weight
    x = activations(device, dtypes.f32, MANY_ROWS[dtypes.f32], K)

    def full(*_):
        raise OutOfMemoryError("0 bytes are free")

    monkeypatch.setattr(Weights, "storage", full)
    with pytest.raises(DeviceError, match="rocm:0: no memory for dequantised weights: 0 bytes are"):
        ops_quantized.qmatmul(device.empty((len(x.numpy()), N), dtypes.f32), x, w)


def test_nobody_dequantises(rocm, monkeypatch) -> None:
    """Without kernels that dequantise on the device it declines: the CPU is not its part."""
    x = activations(rocm, dtypes.f32, MANY_ROWS[dtypes.f32], K)
    plain = np.zeros((N, K), np.float32)
    w = ops.quantize(Tensor.from_numpy(plain), dtypes.q8_0).to(rocm)
    first = next(i for i in implementations(rocm) if i.op == "qmatmul")
    assert "nobody dequantises q8_0 on rocm:0" in str(first.supports(x, w))
    assert first.supports(x.narrow(0, 0, 0), w) is None
