"""Products on matrix instructions: which are, and against f64 products of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import judge_sums
from rounding import normal

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_matmul_matrix as matrix


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


@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
@pytest.mark.parametrize("tile", ["small", "large"])
@pytest.mark.parametrize(("m", "n", "k"), [(9, 8, 8), (64, 64, 64), (130, 136, 72), (65, 264, 200)])
def test_edges(rocm, taken, monkeypatch, dtype, tile, m, n, k):
    """Tiles and stages that are not full, either way round, with a bias and in batches."""
    wanted = (64, 64, 64) if tile == "small" else tuple(map(int, large(rocm).split("x")))
    monkeypatch.setattr(matrix, "tile_for", lambda *_: wanted)
    x, w, bias = normal(dtype, 2, m, k), normal(dtype, n, k, seed=1), normal(dtype, n, seed=2)
    a, b, c = (v.astype(np.float64) for v in (x, w, bias))
    given = [Tensor.from_numpy(v, rocm) for v in (x, w, bias)]
    terms = np.abs(a) @ np.abs(b.T)
    judge_sums(ops.linear(*given).numpy(), a @ b.T + c, terms + np.abs(c), dtype)
    across = Tensor.from_numpy(np.stack([w.T, w.T[:, ::-1]]), rocm)
    both = np.stack([b.T, b.T[:, ::-1]])
    judge_sums(ops.matmul(given[0], across).numpy(), a @ both, np.abs(a) @ np.abs(both), dtype)
    assert [name.split("_")[0] for name in taken] == [
        f"{way}{'x'.join(map(str, wanted))}" for way in ("along", "across")
    ]


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
