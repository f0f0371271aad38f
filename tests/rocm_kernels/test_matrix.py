"""Products on matrix instructions: which are, and against f64 products of the same numbers."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from rounding import judge_sums
from rounding import normal

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip import space
from propolis_rocm_kernels import ops_matmul
from propolis_rocm_kernels import ops_matmul_matrix as matrix
from propolis_rocm_kernels import ops_quantized as quantized
from propolis_rocm_kernels import ops_quantized_matmul_few as few
from propolis_rocm_kernels import ops_quantized_matmul_tiles as tiles
from propolis_rocm_kernels._kernels import Kernel


KERNELS = ["rocm_hip", "rocm_kernels"]


@pytest.fixture(scope="module")
def runtime():
    """Where numbers may be rounded on the way; see conftest.py."""
    return Runtime.start(Config(fallback="error", plugins=KERNELS))


@pytest.fixture
def taken(monkeypatch):
    """The names of the kernels of matrix instructions that were launched."""
    names = []
    launch = matrix.launch

    def spy(kernel, *rest, **options):
        names.append(kernel.name.removeprefix("matmul_matrix_"))
        launch(kernel, *rest, **options)

    monkeypatch.setattr(matrix, "launch", spy)
    return names


@pytest.fixture(autouse=True)
def instructions(request, rocm):
    """Skips what an AMD GPU, never the simulator, has no matrix instructions for."""
    asked = getattr(request.node, "callspec", None)
    dtype = asked.params.get("dtype", dtypes.bf16) if asked else dtypes.f16
    arch = rocm.properties.arch
    if arch.startswith("gfx") and not matrix.has_instructions(arch, quantized._narrow(dtype)):
        pytest.skip(f"{arch} has no matrix instructions for {dtype}")


def large(rocm):
    """The larger tiles of this device, as kernels are called by."""
    return "128x128x64" if rocm.hardware.shared_bytes > 1 << 16 else "128x128x32"


@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["along", "across"])
def test_every_place_of_a_fragment(rocm, taken, dtype, transposed):
    """A product with the identity, of numbers that are all different, is these numbers again."""
    values = (np.arange(256).reshape(16, 16) - 100).astype(dtype.numpy)
    one = np.eye(16, dtype=dtype.numpy)
    for a, b in ((values, one), (one, values)):
        x, w = (Tensor.from_numpy(given, rocm) for given in (a, b.T if not transposed else b))
        w = w if transposed else w.transpose(0, 1)
        assert (ops.matmul(x, w).numpy() == values).all()
    name = "across" if transposed else "along"
    assert taken == [f"{name}64x64x64_{dtype.name}"] * 2


@pytest.fixture
def split(monkeypatch):
    """Has products done in the tiles and parts that a test asks for."""

    def said(tile, parts):
        def split_for(m, n, depth, units, most, *, batches=1, whole=False, **_):
            del m, n, units
            deep = max(1, math.ceil(depth / tile[2]))
            steps = deep if whole or batches > 1 else math.ceil(deep / min(parts, deep))
            return matrix.Split(tile, matrix.stages_for(tile, most), math.ceil(deep / steps), steps)

        monkeypatch.setattr(matrix, "split_for", split_for)

    return said


@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(9, 8, 8), (64, 64, 64), (130, 136, 72), (65, 264, 712)])
def test_edges(rocm, taken, split, dtype, m, n, k):
    """Tiles and stages that are not full, or filled again, with a bias and in batches."""
    room = matrix.room(rocm)
    fit = [t for t in matrix.TILES if matrix.bytes_of(t) * matrix.stages_for(t, room) <= room]
    assert {(64, 64, 64), (128, 128, 32)} <= {*fit}  # on all devices; others where they have room
    x, w, bias = normal(dtype, 2, m, k), normal(dtype, n, k, seed=1), normal(dtype, n, seed=2)
    a, b, c = (v.astype(np.float64) for v in (x, w, bias))
    given = [Tensor.from_numpy(v, rocm) for v in (x, w, bias)]
    across = Tensor.from_numpy(np.stack([w.T, w.T[:, ::-1]]), rocm)
    both = np.stack([b.T, b.T[:, ::-1]])
    terms = np.abs(a) @ np.abs(b.T)
    for tile in fit:
        taken.clear()
        split(tile, 1)
        judge_sums(ops.linear(*given).numpy(), a @ b.T + c, terms + np.abs(c), dtype)
        judge_sums(ops.matmul(given[0], across).numpy(), a @ both, np.abs(a) @ np.abs(both), dtype)
        assert [name.split("_")[0] for name in taken] == [
            f"{way}{'x'.join(map(str, tile))}" for way in ("along", "across")
        ]


@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 128), (33, 137, 136), (70, 136, 264)])
def test_shared_depth(rocm, taken, split, dtype, parts, m, n, k):
    """Sums of parts, of which the last may be short, are joined with the bias, once rounded."""
    x, w, bias = normal(dtype, m, k), normal(dtype, n, k, seed=1), normal(dtype, n, seed=2)
    a, b, c = (v.astype(np.float64) for v in (x, w, bias))
    given = [Tensor.from_numpy(v, rocm) for v in (x, w, bias)]
    terms = np.abs(a) @ np.abs(b.T)
    for tile in (t for t in matrix.rates(rocm.hardware.shared_bytes) if k > t[2]):
        taken.clear()
        split(tile, parts)
        judge_sums(ops.linear(*given).numpy(), a @ b.T + c, terms + np.abs(c), dtype)
        across = Tensor.from_numpy(w.T.copy(), rocm)
        judge_sums(ops.matmul(given[0], across).numpy(), a @ b.T, terms, dtype)
        sides = "x".join(map(str, tile))
        join = f"join{1 if n % 4 else 4}_{dtype.name}"
        way = "along" if n % 8 else "across"
        if n % 8:  # others multiply what does not lie at whole packs
            assert taken == [f"along{sides}_{dtype.name}", join]
        else:
            assert taken == [f"along{sides}_{dtype.name}", join, f"{way}{sides}_{dtype.name}", join]


def test_where_the_depth_is_shared():
    """Where tiles are fewer than compute units it is; not where they are enough, or by batches."""
    wide = 4096, 14336, 60, 1 << 16
    assert 1 < matrix.split_for(128, *wide).parts
    assert 1 == matrix.split_for(128, *wide, whole=True).parts
    assert 1 == matrix.split_for(128, *wide, batches=2).parts
    assert 1 == matrix.split_for(4096, *wide).parts
    assert 1 == matrix.split_for(128, 4096, 8, 60, 1 << 16).parts


def test_memory_of_shared_depth(rocm, taken, split, monkeypatch):
    """As much as is said is borrowed; where it is lacking no depth is shared, and sums hold."""

    def full(*_):
        raise OutOfMemoryError("0 bytes are free")

    asked = []
    reserve = matrix.Parts.reserve
    monkeypatch.setattr(
        matrix.Parts, "reserve", lambda s, d, n: asked.append(n) or reserve(s, d, n)
    )
    split((64, 64, 64), 4)
    x, w = normal(dtypes.f16, 300, 200), normal(dtypes.f16, 250, 200, seed=1)
    a, b = (v.astype(np.float64) for v in (x, w))
    given = [Tensor.from_numpy(v, rocm) for v in (x, w)]
    judge_sums(ops.linear(*given).numpy(), a @ b.T, np.abs(a) @ np.abs(b.T), dtypes.f16)
    assert asked == [4 * 300 * 250 * 4]
    assert asked[0] <= ops_matmul._memory_of_linear(*given) <= 1 << 21
    assert ops_matmul._memory_of_matmul(*given[:1], given[1].transpose(0, 1)) <= 1 << 21
    taken.clear()
    monkeypatch.setattr(matrix.Parts, "storage", full)
    judge_sums(ops.linear(*given).numpy(), a @ b.T, np.abs(a) @ np.abs(b.T), dtypes.f16)
    assert taken == ["along64x64x64_f16"]


def test_few_rows_share_the_depth_too(rocm, taken, split, monkeypatch):
    """Where the other matrix lies across, and no kernel of rows takes it: as much as is said."""
    asked, reserve = [], matrix.Parts.reserve
    monkeypatch.setattr(
        matrix.Parts, "reserve", lambda s, d, n: asked.append(n) or reserve(s, d, n)
    )
    split((64, 64, 64), 3)
    x, w = normal(dtypes.f16, 4, 200), normal(dtypes.f16, 200, 64, seed=1)
    a, b = (v.astype(np.float64) for v in (x, w))
    given = [Tensor.from_numpy(v, rocm) for v in (x, w)]
    judge_sums(ops.matmul(*given).numpy(), a @ b, np.abs(a) @ np.abs(b), dtypes.f16)
    assert taken == ["across64x64x64_f16", "join4_f16"]
    assert 0 < asked[0] <= ops_matmul._memory_of_matmul(*given)


def test_what_does_not_fit_is_left_to_others(rocm, taken):
    """Rows that begin anywhere, depths of parts of a pack, and other dtypes: the same, without."""
    for dtype, depth, first in ((dtypes.f16, 36, 0), (dtypes.f16, 40, 1), (dtypes.f32, 40, 0)):
        x, w = normal(dtype, 12, depth + 1), normal(dtype, 9, depth + 1, seed=1)
        a, b = (Tensor.from_numpy(v, rocm).narrow(1, first, depth) for v in (x, w))
        x, w = (v[:, first : first + depth].astype(np.float64) for v in (x, w))
        judge_sums(ops.linear(a, b).numpy(), x @ w.T, np.abs(x) @ np.abs(w).T, dtype)
    assert taken == []


def test_architectures_without_them(rocm, monkeypatch):
    """On gfx1030, and in f16 on gfx90a, which takes denormals for zero, others multiply."""
    assert not matrix.has_instructions("gfx1030", dtypes.bf16)
    assert not matrix.has_instructions("gfx90a:sramecc+", dtypes.f16)
    assert matrix.has_instructions("gfx90a:sramecc+", dtypes.bf16)
    monkeypatch.setattr(matrix, "has_instructions", lambda *_: False)
    monkeypatch.setattr(matrix, "launch", None)  # which would raise
    x = normal(dtypes.f16, 16, 16)
    a = x.astype(np.float64)
    given = Tensor.from_numpy(x, rocm)
    judge_sums(ops.linear(given, given).numpy(), a @ a.T, np.abs(a) @ np.abs(a).T, dtypes.f16)


def rounded(values, dtype):
    """In f64, what a dtype makes of numbers."""
    return np.asarray(values).astype(dtype.numpy).astype(np.float64)


@pytest.mark.parametrize("dtype", [dtypes.f32, *matrix.MATRIX], ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [((130,), 40, 64), ((2, 70), 300, 96), ((129,), 129, 512)],
    ids=str,
)
@pytest.mark.parametrize("parts", [1, 2])
def test_products_of_many_rows_with_blocks(
    rocm, taken, monkeypatch, split, dtype, rows, columns, depth, parts
):
    """Products of both in 16 bits, the weight in tiles of 128 rows; f32 comes out as f32."""
    monkeypatch.setattr(space, "TILE_BYTES", 2 * 128 * depth)
    split((64, 64, 64), parts)
    narrow = dtypes.bf16 if dtype is dtypes.f32 else dtype
    x = normal(dtype, *rows, depth)
    blocks = dtypes.q4_k if depth % 256 == 0 else dtypes.q4_1
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, columns, depth, seed=1), rocm), blocks)
    a, b = rounded(x, narrow), rounded(ops.dequantize(w).numpy(), narrow)
    out = rocm.empty((*rows, columns), dtype)
    quantized.qmatmul_rounded(out, Tensor.from_numpy(x, rocm), w)
    judge_sums(out.numpy(), a @ b.T, np.abs(a) @ np.abs(b).T, dtype)
    way = "wide" if dtype is dtypes.f32 else "along"
    shared = parts > 1 and depth > 64
    joined = {f"join{1 if columns % 4 else 4}_{dtype.name}"} if shared else set()
    assert {name.split("64x")[0] for name in taken} == {way} | joined
    assert len(taken) == -(-columns // 128) * (1 + shared)


def test_rows_that_lie_apart(rocm, taken):
    """Rows and batches of a larger tensor are taken where they lie, if at whole packs."""
    x = normal(dtypes.f16, 2, 24, 96)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 32, 64, seed=1), rocm), dtypes.q8_0)
    values = ops.dequantize(w).numpy()
    # Others take the weight as it is.
    for first, least, b in ((8, 1, rounded(values, dtypes.f16)), (12, 0, values)):
        part = Tensor.from_numpy(x, rocm).narrow(1, 3, 20).narrow(2, first, 64)
        a = rounded(x[:, 3:23, first : first + 64], dtypes.f16)
        judge_sums(ops.qmatmul(part, w).numpy(), a @ b.T, np.abs(a) @ np.abs(b).T, dtypes.f16)
        assert len(taken) == least
        taken.clear()


@pytest.mark.parametrize("blocks", sorted(dtypes.BLOCKS, key=str), ids=str)
@pytest.mark.parametrize(("rows", "columns"), [((2,), 40), ((3, 4), 16), ((25,), 33), ((64,), 70)])
def test_products_of_few_rows_with_blocks(rocm, blocks, rows, columns):
    """Products of both in bf16, whatever of a tile there is, of odd numbers of blocks."""
    depth = 3 * blocks.block_size
    x = normal(dtypes.f32, *rows, depth)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, columns, depth, seed=1), rocm), blocks)
    a, b = rounded(x, dtypes.bf16), rounded(ops.dequantize(w).numpy(), dtypes.bf16)
    given, out = Tensor.from_numpy(x, rocm), rocm.empty((*rows, columns), dtypes.f32)
    assert few._takes(given, w) is None
    few.qmatmul_few(out, given, w)
    judge_sums(out.numpy(), a @ b.T, np.abs(a) @ np.abs(b).T, dtypes.f32)


def test_weights_of_a_larger_tensor(rocm):
    """Rows of weights are taken where they lie, and rows of activations."""
    x = normal(dtypes.f32, 3, 24, 256)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 90, 512), rocm), dtypes.q4_k)
    whole = rounded(ops.dequantize(w).numpy(), dtypes.bf16)
    part = Tensor.from_numpy(x, rocm).narrow(1, 3, 5)
    a, b = rounded(x[:, 3:8], dtypes.bf16), whole[7:60, 256:]
    out = rocm.empty((3, 5, 53), dtypes.f32)
    few.qmatmul_few(out, part, w.narrow(0, 7, 53).narrow(1, 256, 256))
    judge_sums(out.numpy(), a @ b.T, np.abs(a) @ np.abs(b).T, dtypes.f32)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 64, 257])
def test_who_multiplies_with_blocks(rocm, monkeypatch, exact, rows):
    """One row, few and many have kernels of their own, which exact numerics do without."""
    modules = {1: {"quantized_matmul_one"}, 257: {"quantized", "cast", "matmul_matrix"}}
    modules |= {n: {"quantized_matmul_bytes"} for n in (2, 5, 16)}
    expected = modules.get(rows, {"quantized_matmul_few", "cast"})
    monkeypatch.setattr(rocm, "compute_units", 8)  # more than the weight has tiles
    if exact:
        rocm = Runtime.start(Config(plugins=KERNELS, numerics="exact")).device(rocm.id)
        expected = {"quantized_matmul"}
    x, w = (Tensor.from_numpy(normal(dtypes.f32, n, 64), rocm) for n in (rows, 32))
    w = ops.quantize(w, dtypes.q8_0)
    launched = []
    monkeypatch.setattr(Kernel, "__call__", lambda k, *_, **__: launched.append(k.module.name))
    ops.qmatmul(x, w)
    assert set(launched) == expected


def test_no_memory_for_rounded_numbers(rocm, monkeypatch):
    """Too little memory for them is no error of the call: others, who need none, serve it."""

    def full(*_):
        raise OutOfMemoryError("0 bytes are free")

    x, w = (Tensor.from_numpy(normal(dtypes.f32, n, 64), rocm) for n in (9, 32))
    out = rocm.empty((9, 32), dtypes.f32)
    w = ops.quantize(w, dtypes.q8_0)
    for kind, holds in (
        (quantized.Rounded, "rounded activations"),
        (space.Weights, "dequantised weights"),
    ):
        monkeypatch.setattr(kind, "storage", full)
        with pytest.raises(DeviceError, match=f"no memory for {holds}: 0 bytes"):
            quantized.qmatmul_rounded(out, x, w)
    shared = tiles._tiling(9, w, rocm)._replace(parts=2)
    monkeypatch.setattr(tiles, "_tiling", lambda *_: shared)
    monkeypatch.setattr(tiles.Parts, "storage", full)
    with pytest.raises(DeviceError, match="no memory for sums of parts of products"):
        tiles.qmatmul_tiles(out, x, w)


@pytest.mark.parametrize("rows", [16, 80])
def test_threads_share_what_they_work_in(rocm, rows):
    """Each gets its own product, of rows and weights that lay in the same memory before."""
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 256, 256), rocm), dtypes.q8_0)
    given = [Tensor.from_numpy(normal(dtypes.f32, rows, 256, seed=s), rocm) for s in range(3)]
    parts = [w.narrow(0, s * 64, 64 + s * 32) for s in range(3)]
    alone = [ops.qmatmul(x, part).numpy() for x, part in zip(given, parts, strict=True)]
    found = []

    def work(which):
        found.extend((which, ops.qmatmul(given[which], parts[which])) for _ in range(60))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert len(found) == 180
    for which, out in found:
        assert (out.numpy() == alone[which]).all()


@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
def test_rows_that_are_columns(rocm, monkeypatch, dtype):
    """A transposed first operand is copied, and goes on matrix instructions; a replay does both."""
    a, w = normal(dtype, 2, 48, 40), normal(dtype, 72, 48, seed=1)
    x, weights = (Tensor.from_numpy(n, rocm) for n in (a, w))
    expected = np.swapaxes(a, 1, 2).astype(np.float64) @ w.T.astype(np.float64)
    terms = np.abs(np.swapaxes(a, 1, 2).astype(np.float64)) @ np.abs(w.T.astype(np.float64))

    def step():
        return ops.linear(x.transpose(1, 2), weights)

    judge_sums(step().numpy(), expected, terms, dtype)
    with capture(rocm) as graph:
        out = step()
    x.assign(x.numpy() * 0)
    graph.replay()
    assert not out.numpy().astype(np.float32).any()
    launched = []
    monkeypatch.setattr(Kernel, "__call__", lambda k, *_, **__: launched.append(k.module.name))
    step()
    assert {"fill", "matmul_matrix"} == set(launched)


@pytest.mark.parametrize(
    ("arch", "has", "room"),
    [
        ("gfx942", 65536, 65536),
        ("gfx950", 163840, 65536),
        ("sm_90", 232448, 232448),
        ("sm_100", 232448, 232447),  # no products by groups of warps
    ],
)
def test_room(arch, has, room):
    """AMD's GPUs have no bodies of the tiles for more than 64 KiB, nor others those of Hopper."""
    hardware = SimpleNamespace(shared_bytes=has)
    device = SimpleNamespace(hardware=hardware, properties=SimpleNamespace(arch=arch))
    assert matrix.room(device) == room
    assert set(matrix.rates(room)) <= set(matrix.TILES)
    assert (max(matrix.rates(room)) > (128, 128, 32)) is arch.startswith("sm_")
