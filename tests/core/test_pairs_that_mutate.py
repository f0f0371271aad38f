"""Ops that give two results and write into their first argument as well."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import Handler
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


KEEP = ops.add_rms_norm_linear_rope_kv_append
HEADS = 2
rng = np.random.default_rng(4)
X, Y = rng.normal(size=(2, 1, 3, 8)).astype(np.float32)
WEIGHT = np.ones(8, np.float32)
W = rng.normal(size=(24, 8)).astype(np.float32)
SLOTS, AT = np.array([[4, 0, 2]], np.int32), np.array([[1, 2, 3]], np.int32)
COS, SIN = rng.normal(size=(2, 9, 2)).astype(np.float32)


def on(device, array):
    """An array's numbers on a device."""
    return Tensor.from_numpy(array, device)


def given(device):
    """All arguments but the cache."""
    return [on(device, a) for a in (X, Y, WEIGHT, W, SLOTS, AT, COS, SIN)]


def expected(cpu):
    """The sum, the queries and the cache of sixes, by ops that do it in turn."""
    args = given(cpu)
    total, product = ops.add_rms_norm_linear(*args[:4])
    each = product.unflatten(2, 4)
    tables = args[5:]
    q = ops.rope(each.narrow(2, 0, HEADS), *tables)
    cache = Tensor.from_numpy(np.full((1, 6, 4, 4), 6, np.float32), cpu)
    ops.rope_kv_append(cache, each.narrow(2, HEADS, 4), args[4], *tables)
    return [t.numpy() for t in (total, q, cache)]


def sixes(device):
    """A cache that nothing was written into."""
    return on(device, np.full((1, 6, 4, 4), 6, np.float32))


def same(found, right) -> None:
    """The same numbers, as far as f32 has them."""
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-5, atol=1e-6)


class Noting(Handler):
    """Keeps the calls."""

    def __init__(self):
        self.calls = []

    def run(self, call, proceed):
        """Keep it."""
        self.calls.append(call)
        proceed()


def test_what_is_written(cpu):
    """Both results and the cache, in this order; nobody may repeat such a call."""
    noting, cache = Noting(), sixes(cpu)
    with cpu.table.intercept(noting):
        total, q = KEEP(cache, *given(cpu), heads=HEADS)
    same((total, q, cache), expected(cpu))
    (call,) = noting.calls
    assert all(a is b for a, b in zip(call.written, (total, q, cache), strict=True))
    assert call.outputs == call.written[:2]
    assert not call.can_repeat


def test_into(cpu):
    """Where told; the cache too, whose other rows stay."""
    cache = sixes(cpu)
    outs = cpu.empty(X.shape, dtypes.f32), cpu.empty((1, 3, HEADS, 4), dtypes.f32)
    assert KEEP.into(outs, cache, *given(cpu), heads=HEADS) == outs
    same((*outs, cache), expected(cpu))


def test_on_the_cpu_for_a_gpu(fakes, cpu):
    """With copies there and back: of a strided cache no more than its own elements change."""
    device = fakes.device()
    whole = on(device, np.full((1, 4, 8, 4), 6, np.float32))
    cache = whole.permute(0, 2, 1, 3).narrow(1, 1, 6)
    total, q = KEEP(cache, *given(device), heads=HEADS)
    right = expected(cpu)
    np.testing.assert_allclose(total.numpy(), right[0], rtol=1e-6)
    np.testing.assert_allclose(q.numpy(), right[1], rtol=1e-5, atol=1e-6)
    kept = np.full((1, 4, 8, 4), 6, np.float32)
    kept[:, :, 1:7] = right[2].transpose(0, 2, 1, 3)
    np.testing.assert_allclose(whole.numpy(), kept, rtol=1e-5, atol=1e-6)


def test_a_result_between_the_elements_of_the_cache(fakes, cpu):
    """What is copied back of a cache with gaps does not undo what lies in them."""
    device = fakes.device()
    whole = on(device, np.full((1, 6, 4 + HEADS, 4), 6, np.float32))
    cache = whole.narrow(2, 0, 4)
    q = whole.narrow(1, 3, 1).narrow(2, 4, HEADS)
    args = [a.narrow(1, 0, 1) if len(a.shape) == 3 else a for a in given(device)]
    args[4:6] = (a.narrow(1, 0, 1) for a in args[4:6])
    total = device.empty((1, 1, 8), dtypes.f32)
    KEEP.into((total, q), cache, *args, heads=HEADS)
    np.testing.assert_allclose(q.numpy(), expected(cpu)[1][:, :1], rtol=1e-5, atol=1e-6)


def test_an_input_in_the_cache(cpu):
    """What is read of the cache's own memory is read as it was before."""
    room = np.zeros((1, 6, 4, 4), np.float32)
    room.reshape(-1)[:24] = X.reshape(-1)
    cache = Tensor.from_numpy(room, cpu)
    args = given(cpu)
    args[0] = cache.reshape(96).narrow(0, 0, 24).reshape(1, 3, 8)
    assert args[0].storage is cache.storage
    total, q = KEEP(cache, *args, heads=HEADS)
    right = expected(cpu)
    same((total, q), right[:2])
    np.testing.assert_allclose(cache.numpy()[0, SLOTS[0]], right[2][0, SLOTS[0]], rtol=1e-5)


def test_a_result_in_the_cache(cpu):
    """Is refused, by the cache's name; nothing is written."""
    cache = sixes(cpu)
    total = cache.reshape(96).narrow(0, 0, 24).reshape(1, 3, 8)
    q = cpu.empty((1, 3, HEADS, 4), dtypes.f32)
    with pytest.raises(OpError, match="shares memory with cache"):
        KEEP.into((total, q), cache, *given(cpu), heads=HEADS)
    assert (cache.numpy() == 6).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"heads": 1}, OpError, "1 heads of queries, 4 of keys and values in the cache, each of 4"),
        ({"heads": -1}, OpError, "-1 heads of queries"),
        ({"cache": (1, 6, 3, 4)}, ShapeError, r"cache is \(batch, capacity, 2 \* kv_heads"),
        ({"cache": (6, 4, 4)}, ShapeError, r"cache is \(batch, capacity, 2 \* kv_heads"),
        ({"cache": (2, 6, 4, 4)}, ShapeError, "slots are"),
        ({"slots": (1, 2)}, ShapeError, "slots are"),
        ({"kept": dtypes.f64}, DTypeError, "x is f32, the cache f64, and slots are i32"),
        ({"kept": dtypes.i32}, DTypeError, "supported: a cache in f32, f16 or bf16"),
    ],
)
def test_what_does_not_fit(cpu, change, error, message):
    """The error says what was given and what would do."""
    cache = cpu.empty(change.get("cache", (1, 6, 4, 4)), change.get("kept", dtypes.f32))
    args = given(cpu)
    if "slots" in change:
        args[4] = cpu.empty(change["slots"], dtypes.i32)
    with pytest.raises(error, match=f"{KEEP.name}: .*{message}"):
        KEEP(cache, *args, heads=change.get("heads", HEADS))
