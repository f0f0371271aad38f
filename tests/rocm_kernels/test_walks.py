"""
Rows and reductions of every size class: each way a kernel walks gives what numpy gives.

And the memory that those work in whose blocks share an output, or whose rows fit no block.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.errors import DeviceNotFoundError
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_hip.space import Space
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels._scratch import scratch


@pytest.fixture(scope="module")
def device(runtime):
    """A GPU, or the simulator of one that ROCM_PATH names."""
    try:
        return runtime.device("rocm:0")
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


def ordered(x, *, descending):
    """What sorts each row: numpy's stable sort, NaN above every number."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    if not descending:
        return np.argsort(wide, axis=-1, kind="stable")
    backwards = np.argsort(wide[..., ::-1], axis=-1, kind="stable")
    return (wide.shape[-1] - 1 - backwards)[..., ::-1]


def with_ties(rng, dtype, *shape):
    """Few numbers, both zeros and NaN among them."""
    if dtype.is_integer:
        return rng.integers(0, 40, shape).astype(dtype.numpy)
    x = np.round(rng.normal(size=shape), 1)
    x[rng.uniform(size=shape) < 0.05] = np.nan
    x[rng.uniform(size=shape) < 0.05] = -0.0
    return x.astype(dtype.numpy)


# Rows that share a tile; one tile and an element more; one that is left over in every pass.
SORTED = ((9, 70), (3, 2048), (2, 2049), (2, 9 * 2048 + 5))


@pytest.mark.parametrize("shape", SORTED, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.i32, dtypes.f16, dtypes.u8], ids=str)
def test_sort_rows(device, dtype, shape) -> None:
    """Equal elements of long rows keep their order, upwards and downwards; NaN is the largest."""
    array = with_ties(np.random.default_rng(3), dtype, *shape)
    x = Tensor.from_numpy(array, device)
    for descending in (False, True):
        expected = ordered(array, descending=descending)
        assert (expected == ops.argsort(x, descending=descending).numpy()).all()
        values = ops.sort(x, descending=descending).numpy()
        assert np.take_along_axis(array, expected, -1).tobytes() == values.tobytes()


def test_sort_across(device) -> None:
    """Rows that lie side by side, longer than a tile."""
    array = with_ties(np.random.default_rng(4), dtypes.f32, 4100, 3)
    x = Tensor.from_numpy(array, device)
    expected = ordered(array.T, descending=False).T
    assert (expected == ops.argsort(x, 0).numpy()).all()
    assert (ordered(array.T, descending=False) == ops.argsort(x.transpose(0, 1)).numpy()).all()


def test_sort_in_turns(device, monkeypatch) -> None:
    """Rows that do not all fit the memory for entries are sorted group by group."""
    monkeypatch.setattr("propolis_rocm_kernels.ops_sort.SPACE", 200_000)
    array = with_ties(np.random.default_rng(5), dtypes.f32, 5, 4500)
    x = Tensor.from_numpy(array, device)
    assert (ordered(array, descending=False) == ops.argsort(x).numpy()).all()


def test_replayed_sort(device) -> None:
    """A captured sort of long rows is right after another one that needed more memory."""
    rng = np.random.default_rng(6)
    x = Tensor.from_numpy(rng.normal(size=(1, 2100)), device)
    with capture(device) as graph:
        y = ops.sort(x)
    ops.sort(Tensor.from_numpy(rng.normal(size=(1, 20_000)), device))
    array = rng.normal(size=(1, 2100))
    x.assign(array)
    graph.replay()
    assert (np.sort(array) == y.numpy()).all()


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.i64], ids=str)
@pytest.mark.parametrize("k", [1, 100, 256, 257])
def test_topk_of_long_rows(device, dtype, k) -> None:
    """The best of a row as long as a vocabulary: of few that are equal the first, best first."""
    array = with_ties(np.random.default_rng(k), dtype, 1, 40_000)
    x = Tensor.from_numpy(array, device)
    for largest in (True, False):
        expected = ordered(array, descending=largest)[:, :k]
        values, places = ops.topk(x, k, largest=largest)
        assert (expected == places.numpy()).all()
        assert np.take_along_axis(array, expected, -1).tobytes() == values.numpy().tobytes()


@pytest.mark.parametrize("shape", [(3, 2048), (2, 2049), (1, 100_003), (2, 3, 9000)], ids=str)
def test_cumsum_rows(device, shape) -> None:
    """Sums along rows: one turn of a block, several, and chunks that blocks share."""
    x = Tensor.from_numpy(numbers(*shape), device)
    expected = np.cumsum(x.numpy().astype(np.float64), -1)
    np.testing.assert_allclose(ops.cumsum(x).numpy(), expected, rtol=2e-6)
    whole = np.arange(np.prod(shape)).reshape(shape).astype(np.int16)
    added = ops.cumsum(Tensor.from_numpy(whole, device)).numpy()
    assert (np.cumsum(whole, -1, np.int16) == added).all()


def test_cumsum_across(device) -> None:
    """Sums along columns, a few long ones and many; what f32 would lose of ones is not lost."""
    for shape in ((5000, 3), (70, 300)):
        array = numbers(*shape)
        expected = np.cumsum(array.astype(np.float64), 0)
        actual = ops.cumsum(Tensor.from_numpy(array, device), 0).numpy()
        np.testing.assert_allclose(actual, expected, rtol=2e-6)
    first = np.ones((1200, 100), np.float32)
    first[0] = 2.0**26
    actual = ops.cumsum(Tensor.from_numpy(first, device), 0).numpy()
    assert (actual[-1] == np.float32(2.0**26 + 1199)).all()
    first[5, 7] = np.inf
    actual = ops.cumsum(Tensor.from_numpy(first, device), 0).numpy()
    assert np.isinf(actual[5:, 7]).all()
    assert np.isfinite(np.delete(actual, 7, 1)).all()


@pytest.mark.parametrize("dtype", sorted(dtypes.FLOATS, key=str), ids=str)
def test_uniform_is_the_same_everywhere(device, dtype) -> None:
    """The numbers of a seed are the CPU's, bit for bit, in a view too; normal ones all but that."""
    cpu = Runtime.start().cpu
    for shape in ((1003,), (7, 5), (2, 2, 2, 2, 2, 2, 3)):
        both = [Tensor.from_numpy(np.zeros(shape, dtype.numpy), d) for d in (cpu, device)]
        given = {"seed": 2**63 + 5, "offset": 2**64 - 3}
        for target in both:
            # Dimensions that do not collapse: more than a kernel walks, in the last case.
            order = range(len(shape))[::-1]
            ops.uniform(target.permute(*order), -0.3, 0.7, **given)
        assert both[0].numpy().tobytes() == both[1].numpy().tobytes()
        for target in both:
            ops.normal(target, 1.0, 2.0, **given)
        here, there = (t.numpy().astype(np.float64) for t in both)
        rtol = {dtypes.f8e4m3: 0.13, dtypes.f8e5m2: 0.26}.get(dtype, 0.01)
        np.testing.assert_allclose(there, here, rtol=rtol, atol=1e-5)


def test_working_memory_goes_with_its_device(device) -> None:
    """A device that nobody needs any more is let go, whatever its kernels worked in."""
    other = RocmProvider(Config.load()).open(0)
    gone = weakref.ref(other)
    assert scratch(other) != scratch(device)
    assert other.keep(Space).reserve(other, 100)
    other.synchronize()
    del other
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("device")
def test_working_memory_that_is_too_small_is_kept() -> None:
    """More is taken beside what a captured step may still use, and then serves all."""
    device = RocmProvider(Config.load()).open(0)
    space = device.keep(Space)
    small = space.reserve(device, 1)
    assert small == space.reserve(device, space_bytes(1))
    large = space.reserve(device, space_bytes(1) + 1)
    others = [device.empty((space_bytes(1),), dtypes.u8) for _ in range(3)]
    assert 5 == len({small, large, *(tensor.ptr for tensor in others)})
    assert large == space.reserve(device, 1)
    assert scratch(device) == scratch(device)
    with device.context.capture():
        assert large == space.reserve(device, space_bytes(1) + 1)
        # There was no memory for it when the calls were first made: it is not asked for again.
        with pytest.raises(OutOfMemoryError, match="while a graph is captured"):
            space.reserve(device, 2 * space_bytes(1) + 1)
    device.synchronize()


SIZES_OF_ELEMENTS = [dtypes.u8, dtypes.f16, dtypes.f32, dtypes.i64]
TURNED = [
    # shape, which dimensions it has in which order, elements of the first dimension left out
    ((64, 128), (1, 0), 0),  # whole squares, in packs
    ((100, 77), (1, 0), 0),  # edges, element by element
    ((80, 200), (1, 0), 16),  # packs of one tensor only
    ((130, 65), (1, 0), 3),
    ((3, 48, 96), (0, 2, 1), 0),
    ((5, 70, 3, 33), (3, 2, 0, 1), 1),  # others between
    ((17, 2, 2, 2, 2, 2, 2, 3, 16), (8, 1, 3, 2, 4, 6, 5, 7, 0), 0),  # more than kernels know
    ((16, 15), (1, 0), 0),  # too few neighbours to turn
]


@pytest.mark.parametrize("dtype", SIZES_OF_ELEMENTS, ids=str)
@pytest.mark.parametrize(("shape", "order", "without"), TURNED)
def test_rows_become_columns(device, dtype, shape, order, without) -> None:
    """Copies are numpy's where other dimensions are the nearest, and write nothing else."""
    array = np.random.default_rng(3).integers(0, 100, shape).astype(dtype.numpy)
    x = Tensor.from_numpy(array, device).narrow(0, without, shape[0] - without)
    expected = array[without:].transpose(order)
    assert (expected == x.permute(*order).contiguous().numpy()).all()
    room = [n + 16 if n > 15 else n for n in expected.shape]
    target = Tensor.from_numpy(np.full(room, 101, dtype.numpy), device)
    part = target
    for axis, n in enumerate(expected.shape):
        part = part.narrow(axis, 8 if n > 15 else 0, n)
    ops.assign(part, x.permute(*order))
    assert (expected == part.contiguous().numpy()).all()
    assert (101 == target.numpy()).sum() == target.numel - expected.size


@pytest.mark.parametrize("kept", [(), (2,), (0, 7)])
@pytest.mark.parametrize("view", ["reversed", "gaps"])
def test_reductions_of_many_dimensions(device, kept, view) -> None:
    """More reduced dimensions than a kernel walks, which follow each other in memory or do not."""
    array = np.random.default_rng(5).integers(-99, 99, (3,) * 8).astype(np.int32)
    x = Tensor.from_numpy(array, device)
    if view == "reversed":
        array, x = array.transpose(), x.permute(*range(8)[::-1])
    else:
        array = array[(slice(2),) * 8]
        for axis in range(8):
            x = x.narrow(axis, 0, 2)
    dims = tuple(d for d in range(8) if d not in kept)
    assert (array.sum(dims, np.int32) == ops.sum(x, dims).numpy()).all()
    assert (array.max(dims) == ops.max(x, dims).numpy()).all()
    floats = ops.cast(x, dtypes.f32)
    np.testing.assert_allclose(ops.var(floats, dims).numpy(), array.var(dims), rtol=1e-5)
