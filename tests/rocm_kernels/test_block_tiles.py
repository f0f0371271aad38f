"""Products of some rows with blocks in tiles on matrix instructions, against f64 ones in bf16."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rounding import judge_sums
from rounding import normal

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.layout import Layout
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_kernels import ops_matmul_matrix as matrix
from propolis_rocm_kernels import ops_quantized_matmul_tiles as tiles
from propolis_rocm_kernels._kernels import Kernel


KERNELS = ["rocm_hip", "rocm_kernels"]


@pytest.fixture(scope="module")
def runtime():
    """Where numbers may be rounded on the way; see conftest.py."""
    return Runtime.start(Config(fallback="error", plugins=KERNELS))


@pytest.fixture(autouse=True)
def instructions(rocm):
    """Skips where an AMD GPU has no matrix instructions."""
    arch = rocm.properties.arch
    if arch.startswith("gfx") and not matrix.has_instructions(arch, dtypes.bf16):
        pytest.skip(f"{arch} has no matrix instructions for {dtypes.bf16}")


def rounded(values):
    """As f64."""
    return values.astype(dtypes.bf16.numpy).astype(np.float64)


def needs_room(rocm, rows, blocks):
    """Skips where there is no kernel, or too little memory, for so many rows."""
    room = rocm.hardware.shared_bytes
    if rows > 64 and (room < tiles._shared(128, blocks, room) or "gfx" in rocm.properties.arch):
        pytest.skip(f"there is no kernel, or shared memory, for {rows} rows of {blocks}")


def judge_tiles(x, w, out):
    """The products of both in bf16."""
    a, b = (rounded(values) for values in (x, ops.dequantize(w.contiguous()).numpy()))
    tiles.qmatmul_tiles(out, Tensor.from_numpy(x, out.device), w)
    judge_sums(out.numpy(), a @ b.T, np.abs(a) @ np.abs(b).T, dtypes.f32)


@pytest.mark.parametrize("blocks", sorted(dtypes.BLOCKS, key=str), ids=str)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("rows", "columns"), [((9,), 5), ((3, 8), 129), ((64,), 70), ((100,), 129), ((200,), 70)]
)
def test_products_in_tiles(rocm, monkeypatch, taken_tiles, blocks, parts, rows, columns):
    """Products of both in bf16, whatever of a tile there is, by one part of the depth or two."""
    depth, m = 768 if blocks.block_size == 256 else 672, math.prod(rows)  # or ends within a chunk
    needs_room(rocm, m, blocks)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, columns, depth, seed=1), rocm), blocks)
    out = rocm.empty((*rows, columns), dtypes.f32)
    chunks = -(-tiles._chunks(depth) // parts)
    own = tiles._tiling(m, w, rocm)
    own = own._replace(parts=-(-tiles._chunks(depth) // chunks), chunks=chunks)
    monkeypatch.setattr(tiles, "_tiling", lambda *_: own)
    judge_tiles(normal(dtypes.f32, *rows, depth), w, out)
    name = f"rows{min((r for r in (16, 32, 64) if r >= m), default=128)}_{blocks.name}"
    joined = f"join{1 if out.numel % 4 else 4}"
    arranged = ["arrange"] if matrix.by_groups(matrix.room(rocm)) else []
    assert taken_tiles == arranged + ([name] if parts == 1 else [name, joined])


SMALL = [d for d in sorted(dtypes.BLOCKS, key=str) if d.block_size == 32]


@pytest.mark.parametrize("blocks", SMALL, ids=str)
@pytest.mark.parametrize("rows", [11, 100])
@pytest.mark.parametrize("depth", [32, 96, 160, 288])
def test_tiles_of_short_rows(rocm, blocks, rows, depth):
    """
    Rows may be shorter than what is copied of them at a time, in the last tile and before.

    An allocation of its own ends near memory that cannot be read: nothing behind it is touched.
    """
    needs_room(rocm, rows, blocks)
    rocm = Runtime.start(Config(plugins=KERNELS, direct_allocations=True)).device(rocm.id)
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 140, depth), rocm), blocks)
    x, out = normal(dtypes.f32, rows, depth, seed=1), rocm.empty((rows, 140), dtypes.f32)
    judge_tiles(x, w, out)


def test_tiles_of_one_row_for_all(rocm):
    """Weights that are broadcast are read where they lie, and not beyond."""
    w = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 1, 288), rocm), dtypes.q4_0)
    x, w = normal(dtypes.f32, 11, 288, seed=1), w.broadcast_to(140, 288)
    assert 0 == w.strides[0]
    judge_tiles(x, w, rocm.empty((11, 140), dtypes.f32))


@pytest.fixture
def taken_tiles(monkeypatch):
    """The tiles' kernels that are launched."""
    names = []
    launch = Kernel.__call__

    def noted(kernel, *values, **more):
        if kernel.module is tiles.MODULE:
            names.append(kernel.name.removeprefix("quantized_matmul_tiles_"))
        return launch(kernel, *values, **more)

    monkeypatch.setattr(Kernel, "__call__", noted)
    return names


@pytest.mark.parametrize("rows", [15, 120])
@pytest.mark.parametrize(
    ("blocks", "depth", "first"), [(dtypes.q6_k, 768, 256), (dtypes.q4_0, 800, 32)], ids=str
)
def test_tiles_of_a_larger_tensor(rocm, rows, blocks, depth, first):
    """Weights begin anywhere, and what lies around them, numbers that are none, takes no part."""
    needs_room(rocm, rows, blocks)
    whole = ops.quantize(Tensor.from_numpy(normal(dtypes.f32, 90, depth), rocm), blocks)
    data = whole.numpy()
    begin, end = blocks.nbytes(first), blocks.nbytes(first + 256 + first % 256)
    data[:7] = data[60:] = data[:, :begin] = data[:, end:] = 0xFF
    w = Tensor.from_blocks(data.reshape(-1), blocks, (90, depth), rocm)
    w = w.narrow(0, 7, 53).narrow(1, first, 256 + first % 256)
    x = normal(dtypes.f32, rows, w.shape[1], seed=1)
    judge_tiles(x, w, rocm.empty((rows, 53), dtypes.f32))


@pytest.mark.parametrize(
    ("rows", "shape", "why"),
    [
        (8, (4096, 256), "8 rows"),
        (257, (4096, 256), "it takes 9 to"),
        (17, (64, 256), "makes 1 blocks"),
        (17, (4096, 256), None),
    ],
)
def test_what_tiles_take(rocm, monkeypatch, taken_tiles, rows, shape, why):
    """Numbers of rows that they are faster for, of weights that fill the card; else a reason."""
    monkeypatch.setattr(rocm, "compute_units", 8)
    x, w = rocm.empty((rows, shape[1]), dtypes.f32), rocm.empty(shape, dtypes.q4_k)
    said = tiles._takes(x, w)
    assert said is None if why is None else why in said
    ops.qmatmul(x, w)
    assert bool(taken_tiles) == (why is None)


@pytest.mark.parametrize("of_tile", [16, 128])
@pytest.mark.parametrize(("rows", "depth"), [(9, 96), (130, 800), (256, 256)])
def test_activations_arranged_for_groups(rocm, of_tile, rows, depth):
    """
    Of a stage of 128 a thread of four multiplies neighbours with its weights.

    Where PTX's instruction takes its 2 t-th and next of eight numbers from (swizzled by rows of 128
    bytes) there are of the t-th quarter, so that what it unpacks lies together.
    """
    if rocm.properties.arch.startswith("gfx"):
        pytest.skip("this is for NVIDIA's Hopper, and the simulator's tests")
    x = normal(dtypes.f32, rows, depth)
    with tiles.arranged_rows(rocm, Tensor.from_numpy(x, rocm), rows, of_tile) as memory:
        shape = -1, -(-depth // 256) * 2, 2, of_tile, 8, 8  # tile, stage, half, row, pack
        size = tiles._bytes_of_rows(rows, depth, of_tile) // 2
        found = Tensor(memory, Layout.contiguous((size,)), dtypes.bf16, rocm).numpy()
    found = found.astype(np.float32).reshape(shape)
    padded = np.zeros((found.shape[0] * of_tile, found.shape[1] * 128), np.float32)
    padded[:rows, :depth] = rounded(x)
    for row in range(of_tile):
        packs = found[:, :, :, row, np.arange(8) ^ row % 8].reshape(*found.shape[:2], 4, 4, 4, 2)
        runs = packs.transpose(0, 1, 4, 2, 3, 5)  # quarter, run, pair
        given = padded.reshape(-1, of_tile, found.shape[1], 128)[:, row]
        assert np.array_equal(runs.reshape(given.shape), given)


def test_what_groups_take(rocm, monkeypatch):
    """Rows of activations that follow each other, and memory for whole tiles and chunks of them."""
    monkeypatch.setattr(tiles, "room", lambda _: 227 << 10)
    monkeypatch.setattr(rocm, "compute_units", 1)
    x, w = rocm.empty((130, 832), dtypes.f32), rocm.empty((256, 800), dtypes.q8_0)
    assert "do not follow each other" in tiles._takes(x.narrow(1, 0, 800), w)
    x = rocm.empty((130, 800), dtypes.f32)
    assert tiles._takes(x, w) is None
    assert tiles._memory(x, w) == space_bytes(0) + space_bytes(2 * 128 * 1024 * 2)
