"""Products on a device, against f64 products of the same numbers by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from rounding import judge_sums
from rounding import normal

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels._product import lanes_for
from propolis_rocm_kernels._product import plan


def judge(actual, a, b, dtype, bias=0.0):
    """As sums of products, and a bias, are judged."""
    a, b, bias = (np.asarray(x).astype(np.float64) for x in (a, b, bias))
    terms = np.abs(a) @ np.abs(b) + np.abs(bias)
    judge_sums(actual, a @ b + bias, terms, dtype)


@pytest.mark.parametrize("dtype", sorted(dtypes.FLOATS, key=str), ids=str)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8, 9, 65])
@pytest.mark.parametrize("depth", [8, 40, 264, 135])
def test_linear(rocm, dtype, m, depth) -> None:
    """Few rows and many, of rows that are whole packs and that are not, with bias and without."""
    x, w, bias = (
        normal(dtype, m, depth),
        normal(dtype, 71, depth, seed=1),
        normal(dtype, 71, seed=2),
    )
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    judge(ops.linear(*given).numpy(), x, w.T, dtype, bias)
    judge(ops.linear(*given[:2]).numpy(), x, w.T, dtype)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_large_tiles(rocm, dtype) -> None:
    """Where there are tiles of 128 for every compute unit these are taken, edges included."""
    side = 128 * max(2, int(rocm.compute_units**0.5) + 1) - 3
    a, b = normal(dtype, side, 37), normal(dtype, 37, side, seed=1)
    given = [Tensor.from_numpy(x, rocm) for x in (a, b)]
    judge(ops.matmul(*given).numpy(), a, b, dtype)


LAYOUTS = {
    "rows": lambda t: t,
    "columns": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "a slice": lambda t: t.narrow(len(t.shape) - 1, 1, t.shape[-1] - 8),
}


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("batches", [((), ()), ((3,), ()), ((3,), (3,)), ((2, 1), (3,))], ids=str)
@pytest.mark.parametrize("m", [1, 5, 70])
def test_layouts_and_batches(rocm, a_layout, b_layout, batches, m) -> None:
    """Row-major, column-major and sliced operands; batches of both, of one, and broadcast."""
    dtype, k, n = dtypes.f16, 80, 72
    a = Tensor.from_numpy(normal(dtype, *batches[0], m, k), rocm)
    b = Tensor.from_numpy(normal(dtype, *batches[1], k, n, seed=1), rocm)
    a, b = LAYOUTS[a_layout](a), LAYOUTS[b_layout](b)
    k = min(a.shape[-1], b.shape[-2])
    a, b = a.narrow(len(a.shape) - 1, 0, k), b.narrow(len(b.shape) - 2, 0, k)
    judge(ops.matmul(a, b).numpy(), a.numpy(), b.numpy(), dtype)


def test_nothing_to_add(rocm) -> None:
    """A product over no elements is zero, and the bias where there is one."""
    x, w = np.zeros((3, 0), np.float32), np.zeros((5, 0), np.float32)
    bias = normal(dtypes.f32, 5)
    given = [Tensor.from_numpy(a, rocm) for a in (x, w, bias)]
    assert (np.broadcast_to(bias, (3, 5)) == ops.linear(*given).numpy()).all()
    assert (np.zeros((3, 5)) == ops.linear(*given[:2]).numpy()).all()


def test_infinities_stay_where_they_belong(rocm) -> None:
    """What tiles are filled up with touches no result: an infinity reaches its row alone."""
    for m in (2, 70):
        a, b = normal(dtypes.f32, m, 19), normal(dtypes.f32, 19, 70, seed=1)
        a[1, 18] = np.inf
        with np.errstate(invalid="ignore"):
            expected = a.astype(np.float64) @ b
        actual = ops.matmul(Tensor.from_numpy(a, rocm), Tensor.from_numpy(b, rocm)).numpy()
        assert (np.isinf(expected) == np.isinf(actual)).all()
        assert not np.isnan(actual).any()


def test_leading_dimensions_become_rows() -> None:
    """Rows that share a matrix are one product, however many dimensions they had."""
    assert (24, 16) == plan((2, 3, 4), (192, 64, 16), (0, 0, 0))[:2]
    folded = plan((2, 3, 4), (192, 64, 16), (80, 0, 0))
    assert (12, 16, 2) == (folded.m, folded.row, folded.batches.numel)
    apart = plan((2, 1), (16, 16), (80, 0))
    assert (1, 0, 2) == (apart.m, apart.row, apart.batches.numel)


def test_lanes_of_a_row() -> None:
    """Few rows get whole warps; where rows are many, as many lanes as do not idle."""
    assert 64 == lanes_for(576, 576, 64, 60)
    assert 16 == lanes_for(576, 49152, 64, 60)
    assert 64 == lanes_for(4096, 128256, 64, 304)
    assert 8 == lanes_for(8, 10**6, 32, 60)
