"""Numbers near the ends of f32, of which results are numbers still."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native.ops_quantized import FORMATS


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", sorted(FORMATS, key=str), ids=str)
def test_huge_activations(runtime, dtype, rows):
    """Sums of bytes times their scale may be beyond f32 where products with weights are not."""
    device, rng = runtime().cpu, np.random.default_rng(7)
    w = Tensor.from_numpy(rng.normal(0, 0.02, (32, 512)).astype(np.float32), device)
    blocks = ops.quantize(w, dtype)
    x = rng.normal(0, 1, (rows, 512)).astype(np.float32)
    x[:, 5] = 1e38
    got = ops.qmatmul(Tensor.from_numpy(x, device), blocks).numpy()
    true = x.astype(np.float64) @ ops.dequantize(blocks, dtypes.f32).numpy().astype(np.float64).T
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, true, rtol=0, atol=1e-2 * np.abs(true).max())


def test_gates_far_below_zero(runtime):
    """``silu`` keeps what an exponential of its argument, which is beyond f32, would lose."""
    x = np.array([-1.0, -20.0, -80.0, -88.5, -89.0, -92.0, 89.0, 3e38], np.float32)
    device = runtime().cpu
    scaled = Tensor.from_numpy(np.full_like(x, 0.5), device)
    got = ops.silu_mul(Tensor.from_numpy(x, device), scaled).numpy()
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, 0.5 * wide / (1 + np.exp(-wide)), rtol=1e-6)
