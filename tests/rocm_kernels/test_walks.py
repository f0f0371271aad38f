"""Rows and reductions of every size class: each way a kernel walks gives what numpy gives."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DeviceNotFoundError


@pytest.fixture(scope="module")
def device():
    """A GPU, or the simulator of one that ROCM_PATH names."""
    try:
        return Runtime.start().device("rocm:0")
    except DeviceNotFoundError:
        pytest.skip("no GPU, and no simulator: `make hipsim`, ROCM_PATH=build/hipsim/host")


def numbers(*shape: int) -> np.ndarray:
    """Numbers of which sums do not cancel."""
    return np.random.default_rng(7).uniform(0.5, 1.5, shape).astype(np.float32)


# A warp, a block, a block of 1024, and the rows that registers do not hold; odd ones are unpacked.
WIDTHS = (48, 513, 1500, 4100, 9000, 16400, 33001)


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_of_any_width(device, width) -> None:
    """Rows sum to 1 and are what numpy computes in f64, whoever takes them."""
    x = numbers(3, width) * 8
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    actual = ops.softmax(Tensor.from_numpy(x, device)).numpy()
    np.testing.assert_allclose(actual, e / e.sum(-1, keepdims=True), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_of_any_width(device, width) -> None:
    """Rows far from 0 are normalised without cancellation, whoever takes them."""
    x, w = numbers(3, width) + 100, numbers(width)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True) * w
    tensors = (Tensor.from_numpy(a, device) for a in (x, w))
    np.testing.assert_allclose(ops.layer_norm(*tensors, eps=0).numpy(), expected, atol=2e-3)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm_of_any_width(device, width) -> None:
    """The sum and its norm agree with f64, also where the row is read twice."""
    x, y, w = numbers(2, width), numbers(2, width), numbers(width)
    total = (x + y).astype(np.float64)
    expected = total / np.sqrt((total**2).mean(-1, keepdims=True)) * w
    h, normed = ops.add_rms_norm(*(Tensor.from_numpy(a, device) for a in (x, y, w)), eps=0)
    np.testing.assert_array_equal(h.numpy(), x + y)
    np.testing.assert_allclose(normed.numpy(), expected, rtol=1e-5)


SHAPES = [
    ((200_003,), None),  # several blocks an output, not a whole pack at the end
    ((2, 100_000), -1),
    ((70_000, 3), 0),  # several blocks a column
    ((20_000, 64), 0),
    ((3, 700, 40), (0, 2)),
    ((600, 33), -1),
    ((5, 3000), -1),
]


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_reductions_of_any_shape(device, shape, dims) -> None:
    """Sum, mean, variance and extremes agree with f64, however many blocks share an output."""
    x = numbers(*shape)
    x[(-1,) * len(shape)] = 3.0
    tensor, wide = Tensor.from_numpy(x, device), x.astype(np.float64)
    np.testing.assert_allclose(ops.sum(tensor, dims).numpy(), wide.sum(dims), rtol=1e-6)
    np.testing.assert_allclose(ops.mean(tensor, dims).numpy(), wide.mean(dims), rtol=1e-6)
    np.testing.assert_allclose(ops.var(tensor, dims).numpy(), wide.var(dims), rtol=1e-5)
    np.testing.assert_array_equal(ops.max(tensor, dims).numpy(), x.max(dims))
    np.testing.assert_array_equal(ops.min(tensor, dims).numpy(), x.min(dims))


def test_shared_outputs_are_the_same_every_time(device) -> None:
    """Which block comes last has no influence: repeated sums have equal bits."""
    tensor = Tensor.from_numpy(numbers(200_003), device)
    sums = {ops.sum(tensor).numpy().tobytes() for _ in range(5)}
    assert 1 == len(sums)


@pytest.mark.parametrize(("shape", "dim"), [((2, 150_001), -1), ((60_000, 3), 0)])
def test_argmax_finds_the_first_of_many_blocks(device, shape, dim) -> None:
    """Of equal largest elements, in different blocks, the first one's index is given."""
    x = np.zeros(shape, np.float32)
    places = np.moveaxis(x, dim, -1)
    places[..., 31_000] = places[..., 44_000] = 1
    found = ops.argmax(Tensor.from_numpy(x, device), dim).numpy()
    np.testing.assert_array_equal(found, x.argmax(dim))


def test_integers_are_summed_exactly(device) -> None:
    """Sums of i64 beyond what floats hold keep every bit, and those of u8 wrap around."""
    x = np.arange(100_000, dtype=np.int64) + 2**53
    assert x.sum() == ops.sum(Tensor.from_numpy(x, device)).numpy()
    y = np.full(70_001, 255, np.uint8)
    assert y.sum(dtype=np.uint8) == ops.sum(Tensor.from_numpy(y, device)).numpy()


@pytest.mark.parametrize("count", [7, 5000])
def test_scatter_add_is_rounded_once(device, count) -> None:
    """Many small numbers for one f16 element are summed in f32, at any number of ids."""
    target = Tensor.from_numpy(np.array([2048, 0], np.float16), device)
    ids = Tensor.from_numpy(np.zeros(count, np.int64), device)
    ops.scatter_add(target, ids, Tensor.from_numpy(np.full(count, 0.25, np.float16), device))
    expected = np.array([np.float16(2048 + count / 4), 0], np.float16)
    np.testing.assert_array_equal(target.numpy(), expected)


def test_ids_outside_touch_nothing(device) -> None:
    """Ids outside the dimension read zeros and write nothing, like masked ones."""
    table = Tensor.from_numpy(numbers(4, 8), device)
    ids = Tensor.from_numpy(np.array([-1, 4, 2**31, 2], np.int64), device)
    rows = ops.embedding(ids, table).numpy()
    np.testing.assert_array_equal(rows[:3], np.zeros((3, 8), np.float32))
    np.testing.assert_array_equal(rows[3], table.numpy()[2])
    before = table.numpy().copy()
    ops.index_add(table, ids.narrow(0, 0, 3), Tensor.from_numpy(numbers(3, 8), device))
    np.testing.assert_array_equal(table.numpy(), before)
    assert dtypes.f32 is table.dtype


@pytest.mark.parametrize("positions", [37, 64, 20_000])
def test_group_norm_of_any_size(device, positions) -> None:
    """Groups of one chunk and of many agree with f64."""
    x, w, b = numbers(2, 6, positions) + 30, numbers(6), numbers(6)
    wide = x.astype(np.float64).reshape(2, 3, -1)
    normed = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    expected = normed.reshape(x.shape) * w[:, None] + b[:, None]
    tensors = (Tensor.from_numpy(a, device) for a in (x, w, b))
    np.testing.assert_allclose(ops.group_norm(*tensors, 3).numpy(), expected, atol=1e-3)
