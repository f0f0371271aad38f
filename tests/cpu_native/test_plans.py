"""Captured steps: what replays do without Python."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.errors import OpError


def steps_of(graph):
    """What a replay runs."""
    return graph._joined or graph._again


def test_a_step_is_one_call(runtime):
    """Calls of kernels that follow each other become one, and see what changed in between."""
    device = runtime().cpu
    rng = np.random.default_rng(1)
    x = Tensor.from_numpy(rng.normal(0, 1, (2, 64)).astype(np.float32), device)
    weight = Tensor.from_numpy(np.ones(64, np.float32), device)
    with capture(device) as graph:
        y = ops.silu_mul(ops.rms_norm(x, weight), ops.add(x, x))
    assert len(graph) == 3
    assert len(steps_of(graph)) == 1
    for _ in range(3):
        new = rng.normal(0, 1, (2, 64)).astype(np.float32)
        x.assign(new)
        graph.replay()
        fresh = Tensor.from_numpy(new, device)
        again = ops.silu_mul(ops.rms_norm(fresh, weight), ops.add(fresh, fresh))
        np.testing.assert_array_equal(y.numpy(), again.numpy())


def test_what_is_no_kernel_runs_in_its_place(runtime):
    """A call of the reference amid the kernels' is made between two of their plans."""
    device = runtime().cpu
    x = Tensor.from_numpy(np.ones((2, 64), np.float32), device)
    with capture(device) as graph:
        y = ops.add(ops.add(x, x), x)
        z = ops.cumsum(y, 1)
        z = ops.add(ops.add(z, z), z)
    assert len(steps_of(graph)) == 3
    x.assign(np.full((2, 64), 2, np.float32))
    graph.replay()
    np.testing.assert_array_equal(z.numpy()[0], 18 * np.arange(1, 65))


def test_a_strided_input_is_copied_at_each_replay(runtime):
    """Where core copies what a kernel takes in a row only, replays copy it too."""
    device = runtime().cpu
    x = Tensor.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4), device)
    weight = Tensor.from_numpy(np.ones(3, np.float32), device)
    with capture(device) as graph:
        y = ops.rms_norm(ops.add(x, x).permute(1, 0), weight)
    x.assign(np.ones((3, 4), np.float32))
    graph.replay()
    np.testing.assert_allclose(y.numpy(), 1, rtol=1e-5)


def test_a_position_outside_is_an_error_in_a_replay_too(runtime):
    """Positions are data: what is outside is refused by name, whoever runs the call."""
    device = runtime().cpu
    x = Tensor.from_numpy(np.ones((1, 1, 2, 8), np.float32), device)
    at = Tensor.from_numpy(np.zeros((1, 1), np.int32), device)
    cos, sin = (Tensor.from_numpy(np.ones((4, 4), np.float32), device) for _ in range(2))
    cache = device.empty((1, 4, 2, 8), dtypes.f32)
    with capture(device) as graph:
        ops.kv_append(cache, ops.rope(x, at, cos, sin), at)
    at.assign(np.full((1, 1), 4, np.int32))
    with pytest.raises(OpError, match=r"rope: position 4 is outside the tables, which has 4 rows"):
        graph.replay()
    at.assign(np.full((1, 1), 3, np.int32))
    graph.replay()
    assert np.isfinite(cache.numpy()[0, 3]).all()
