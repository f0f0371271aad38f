"""Code that runs on a device without memory, to be counted."""

from __future__ import annotations

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.rehearsal import RehearsalDevice


def test_what_lives_is_counted():
    """Results count while somebody holds them; the peak is the most at once."""
    device = RehearsalDevice()
    memory = device.memory
    x = device.empty((1000, 1000, 1000), dtypes.f32)
    y = ops.mul(ops.exp(x), x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert (8 * 10**9, 12 * 10**9) == (memory.live, memory.peak)
    del x, y
    assert 0 == memory.live


def test_files_are_not_read():
    """What is copied in counts, and is not looked at; what comes out is zeros."""
    device = RehearsalDevice()
    x = Tensor.from_numpy(np.full(10, 7, np.float32), device)
    assert 40 == device.memory.live
    assert [0.0] * 10 == x.numpy().tolist()


def test_every_op_is_served():
    """Nothing falls to the CPU, whatever the dtypes."""
    table = RehearsalDevice().table
    for spec in ops.catalogue().values():
        for kinds in zip(*(sorted(d, key=repr) for d in spec.dtypes.values()), strict=False):
            assert table.trace(spec, spec.key(*kinds)).winner is not None
