"""Inputs that lie in rows apart, as halves of one product do: read where they are."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import OpError


@pytest.fixture
def device(runtime):
    """A CPU that the kernels serve."""
    return runtime().cpu


def copies(device):
    """Inputs that were copied to be in a row."""
    return device.table.placement.strided_copies


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("op", ["silu_mul", "gelu_erf_mul"])
def test_halves_of_a_product(device, op, dtype):
    """The halves of several rows are multiplied as they lie; the bits are those of copies."""
    rng = np.random.default_rng(2)
    both = Tensor.from_numpy(rng.normal(0, 2, (2, 5, 2 * 71)).astype(np.float32), device)
    both = ops.cast(both, getattr(dtypes, dtype))
    gate, up = both.narrow(2, 0, 71), both.narrow(2, 71, 71)
    apart = getattr(ops, op)(gate.contiguous(), up.contiguous())
    before = copies(device)
    together = getattr(ops, op)(gate, up)
    assert copies(device) == before
    np.testing.assert_array_equal(together.numpy(), apart.numpy())


def test_rows_that_lie_irregularly(device):
    """Rows of several distances are served too, by a copy, and so are those of none."""
    x = Tensor.from_numpy(np.arange(48, dtype=np.float32).reshape(2, 6, 4), device)
    odd = x.narrow(1, 0, 3)  # three rows of six, twice
    across = x.permute(2, 1, 0)
    same = x.narrow(0, 0, 1).narrow(1, 0, 1).broadcast_to(2, 6, 4)  # no distance at all
    for view in (odd, across, same):
        expected = ops.silu_mul(view.contiguous(), view.contiguous()).numpy()
        np.testing.assert_array_equal(ops.silu_mul(view, view).numpy(), expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_of_a_product_are_turned_where_they_lie(device, interleaved):
    """Queries and keys within one product of several rows are not copied."""
    rng = np.random.default_rng(3)
    both = Tensor.from_numpy(rng.normal(0, 1, (1, 4, 10 * 16)).astype(np.float32), device)
    heads = both.narrow(2, 32, 96).unflatten(2, 16)
    at = Tensor.from_numpy(np.arange(4, dtype=np.int32)[None], device)
    cos, sin = (
        Tensor.from_numpy(rng.normal(0, 1, (8, 8)).astype(np.float32), device) for _ in range(2)
    )
    apart = ops.rope(heads.contiguous(), at, cos, sin, interleaved=interleaved)
    before = copies(device)
    turned = ops.rope(heads, at, cos, sin, interleaved=interleaved)
    assert copies(device) == before
    np.testing.assert_array_equal(turned.numpy(), apart.numpy())


@pytest.mark.parametrize("width", [1, 15, 16, 17, 1024, 1025, 3001])
def test_the_largest(device, width):
    """Numpy's element and place: of ties the first, of NaN too, beside infinities."""
    for op in (ops.argmax, ops.max):
        winner = device.table.trace(op, op.key(dtypes.f32)).winner
        assert winner.provenance.plugin == "cpu_native"
    rng = np.random.default_rng(width)
    rows = np.round(rng.normal(0, 1, (9, width)), 1).astype(np.float32)
    some = rng.integers(0, width, 6)
    rows[1, some[0]] = np.inf
    rows[2] = -np.inf
    rows[3, some[1]] = -np.inf
    rows[4, some[2:4]] = np.nan
    rows[5, some[4]], rows[5, some[5]] = np.nan, np.inf
    rows[6] = -0.0
    rows[6, -1] = 0.0
    wide = np.concatenate([rows, rows + 5], 1)
    for x in (Tensor.from_numpy(rows, device), Tensor.from_numpy(wide, device).narrow(1, 0, width)):
        np.testing.assert_array_equal(ops.argmax(x, 1).numpy(), rows.argmax(1))
        for dims in (1, -1, (1,), np.int64(1), [np.int64(-1)]):
            np.testing.assert_array_equal(ops.max(x, dims).numpy(), rows.max(1))
        np.testing.assert_array_equal(ops.argmax(x, 0).numpy(), rows.argmax(0))
        np.testing.assert_array_equal(ops.max(x).numpy(), rows.max())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kept", ["f32", "f16"])
def test_keys_of_a_prompt(runtime, kept, threads):
    """Threads that share many tokens leave what one by one do: of tokens of one slot the last."""
    device = runtime(threads=threads).cpu
    rng = np.random.default_rng(5)
    shape, dtype = (2, 60, 6, 64), getattr(dtypes, kept)
    x = Tensor.from_numpy(rng.normal(0, 1, shape).astype(np.float32), device)
    cos, sin = (
        Tensor.from_numpy(rng.normal(0, 1, (70, 32)).astype(np.float32), device) for _ in range(2)
    )
    slots, at = (rng.integers(0, n, shape[:2], np.int32) for n in (40, 70))
    given = [Tensor.from_numpy(rows, device) for rows in (slots, at)]
    whole, each = (
        Tensor.from_numpy(np.zeros((2, 40, 6, 64), dtype.numpy), device) for _ in range(2)
    )
    ops.rope_kv_append(whole, x, *given, cos, sin)
    for t in range(shape[1]):
        ops.rope_kv_append(each, *(one.narrow(1, t, 1) for one in (x, *given)), cos, sin)
    np.testing.assert_array_equal(whole.numpy(), each.numpy())
    assert len(np.unique(slots[0])) < shape[1]


def test_a_table_of_no_rows(device):
    """No id is inside, and the error says that rather than a range."""
    table, ids = (Tensor.from_numpy(a, device) for a in (np.ones((0, 3), "f"), np.array([0])))
    with pytest.raises(OpError, match=r"id 0 is outside the table, which has no rows$"):
        ops.embedding(ids, table)
