"""silu_mul against its definition in f64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import ShapeError
from propolis_cpu_ref import ops_unary


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def silu_mul(gate, up):
    """``gate * sigmoid(gate) * up`` in f64."""
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    with np.errstate(all="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@every_float
def test_layouts(run, lay, draw, close, how, dtype):
    """Every float dtype in every layout gives the definition's values."""
    gate, up = lay(draw((3, 4, 5), dtype, 1, 4.0), how), lay(draw((3, 4, 5), dtype, 2))
    close(ops.silu_mul, silu_mul(gate.numpy(), up.numpy()), run(ops.silu_mul, gate, up))
    close(ops.silu_mul, silu_mul(up.numpy(), gate.numpy()), run(ops.silu_mul, up, gate))


@every_float
@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0), (0, 3), (2, 0, 3), (2, 3, 0), (1, 1, 129), (7, 1)]
)
def test_shapes(run, draw, close, dtype, shape):
    """Tensors without dimensions, without elements and of one element work."""
    gate, up = draw(shape, dtype, 1, 4.0), draw(shape, dtype, 2)
    actual = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    close(ops.silu_mul, silu_mul(gate, up), actual)


@every_float
def test_one_tensor_twice(run, draw, close, dtype):
    """Gate and up may be one tensor."""
    x = draw((5, 9), dtype)
    tensor = Tensor.from_numpy(x)
    close(ops.silu_mul, silu_mul(x, x), run(ops.silu_mul, tensor, tensor))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16], ids=repr)
def test_ieee(run, same, dtype):
    """
    Far from zero silu is the identity or zero; infinities and NaN follow the definition.

    ``-inf / (1 + inf)`` is NaN, as in torch.
    """
    gate = np.array([np.inf, -np.inf, np.nan, 30000, -30000, 0.0, -0.0, 1, 2], dtype.numpy)
    up = np.array([1, 1, 1, 1, 1, 1, 1, np.inf, np.nan], dtype.numpy)
    far = float(gate[3])
    expected = [np.inf, np.nan, np.nan, far, -0.0, 0.0, -0.0, np.inf, np.nan]
    same(expected, run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up)))


@every_float
@pytest.mark.parametrize("shape", [(1,), (300, 700)])
def test_overflow(run, same, dtype, shape):
    """A product beyond the largest number is infinite, in f8e4m3 NaN, without a warning."""
    large = 200 if dtype is dtypes.f8e4m3 else 1e30
    large = {dtypes.f16: 6e4, dtypes.f64: 1e300}.get(dtype, large)
    x = Tensor.from_numpy(np.full(shape, large).astype(dtype.numpy))
    expected = np.nan if dtype is dtypes.f8e4m3 else np.inf
    same(expected, run(ops.silu_mul, x, x))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=repr)
def test_every_gate(run, nearest, close, dtype):
    """All numbers of the narrow floats come out right, rounded once from f32."""
    gate = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        gate = gate[np.isfinite(gate.astype(np.float32))]
    up = np.ones_like(gate)
    truth = silu_mul(gate, up)
    actual = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    # f32 keeps 24 bits: after one rounding at most a tie goes the other way.
    apart = np.abs(actual.astype(np.float64) - nearest(truth, dtype))
    ulp = np.spacing(np.abs(actual.astype(np.float32))) * 2.0 ** (24 - 11 + 3)
    assert (apart <= np.maximum(ulp, 2.0**-24)).all()
    close(ops.silu_mul, truth, actual)


@given(rows=st.integers(0, 6), width=st.integers(0, 40), dtype=st.sampled_from(FLOATS))
@settings(max_examples=40, deadline=None)
def test_any_sizes(run, draw, close, rows, width, dtype):
    """Any number of rows of any width agrees with the definition."""
    gate, up = draw((rows, width), dtype, 1), draw((rows, width), dtype, 2)
    actual = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    close(ops.silu_mul, silu_mul(gate, up), actual)


@pytest.mark.parametrize("cached", [1, 7, 64])
def test_parts_that_fit_the_cache(run, draw, close, monkeypatch, cached):
    """Nothing is lost where one part of the rows ends and the next begins."""
    monkeypatch.setattr(ops_unary, "CACHED", cached)
    gate, up = draw((11, 7), dtypes.f32, 1), draw((11, 7), dtypes.f32, 2)
    actual = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    close(ops.silu_mul, silu_mul(gate, up), actual)


def test_errors():
    """Other shapes, mixed dtypes and integers are errors that name the op."""
    x = Tensor.from_numpy(np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"silu_mul: .*agree; got gate \(2, 3\), up \(3,\)"):
        ops.silu_mul(x, Tensor.from_numpy(np.ones(3, np.float32)))
    with pytest.raises(DTypeError, match=r"silu_mul: gate is f32, up is f64; .*ops.cast"):
        ops.silu_mul(x, Tensor.from_numpy(np.ones((2, 3))))
    whole = Tensor.from_numpy(np.ones((2, 3), np.int16))
    with pytest.raises(DTypeError, match=r"silu_mul: gate is i16; supported: f64, f32, f16, bf16,"):
        ops.silu_mul(whole, whole)
