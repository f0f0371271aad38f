"""Activations where their exponential overflows or vanishes, and beside numbers of any size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import allowed_error
from propolis_conformance.compare import difference
from propolis_conformance.families import OPS


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)
UNARY = ("sigmoid", "silu", "gelu", "quick_gelu")
GATED = ("silu_mul", "gelu_mul")
ENDS = [1e-44, 1e-38, 1e-7, 0.5, 3, 15, 40, 85, 87.5, 89, 95, 103, 140, 174.7, 185, 350, 360]
F64 = [5e-324, 1e-310, 700, 709.5, 720, 740, 746, 1000, 1420, 1480, 3000, 1e200, 1.7e308]


def numbers(dtype):
    """Of both signs, about the ends of the exponentials of f32 and f64."""
    sizes = [*ENDS, *(F64 if dtype is dtypes.f64 else [1e-45, 1e4, 1e38])]
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([s * size for size in sizes for s in (1, -1)]).astype(dtype.numpy)
    return found[np.isfinite(found.astype(np.float64))]


@every_float
@pytest.mark.parametrize("name", UNARY)
def test_unary(run, dtype, name):
    """Each is right to the last place of its dtype, below the normal range too."""
    x = numbers(dtype)
    spec = ops.catalogue()[name]
    with np.errstate(all="ignore"):
        truth = OPS[name].truth(x.astype(np.float64))
    actual = run(spec, Tensor.from_numpy(x))
    terms = np.abs(x.astype(np.float64)) if name == "gelu" else None
    assert difference(spec, actual, truth, dtype, terms) is None
    off = np.abs(actual.astype(np.float64) - truth)
    assert (off <= allowed_error(RELATIVE[dtype], dtype, truth, terms, exact=True)).all()


@every_float
@pytest.mark.parametrize("name", GATED)
def test_gated(run, dtype, name):
    """What is lost in a part is not lost in the whole: any gate with any number beside it."""
    x = numbers(dtype)
    gate, up = np.repeat(x, len(x)), np.tile(x, len(x))
    spec = ops.catalogue()[name]
    wide = gate.astype(np.float64), up.astype(np.float64)
    with np.errstate(all="ignore"):
        truth = OPS[name].truth(*wide)
        terms = np.abs(wide[0] * wide[1]) * (name == "gelu_mul")  # of SiLU's nothing cancels
    actual = run(spec, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    assert difference(spec, actual, truth, dtype, terms) is None


def test_brought_back(run):
    """A silu that f32 has no number for, or a coarse one, is none of the result's business."""
    gate, up = np.float32([-90, -100, -104, 2.0**-149]), np.float32([1e6, 1e30, 1e38, 1e30])
    actual = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    far = -90 * math.exp(-90) * 1e6, -100 * math.exp(-100) * 1e30, -104 * math.exp(-104) * 1e38
    np.testing.assert_allclose(actual, np.float32([*far, 2.0**-150 * 1e30]), rtol=1e-6)
    x = np.array([-710.0, -740.0])
    np.testing.assert_allclose(run(ops.sigmoid, Tensor.from_numpy(x)), np.exp(x), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0)])
def test_small_shapes(run, shape):
    """Tensors of one element and of none take the same way."""
    x = np.full(shape, -90, np.float32)
    actual = run(ops.silu, Tensor.from_numpy(x))
    np.testing.assert_allclose(actual, np.full(shape, -7.374613e-38, np.float32), rtol=1e-5)


def test_one_element_changes_no_other(run, draw):
    """What is done anew is only what was lost: the rest keeps its bits."""
    gate, up = draw((3, 50), dtypes.f32, 1), draw((3, 50), dtypes.f32, 2)
    before = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    gate[1, 7] = -95
    after = run(ops.silu_mul, Tensor.from_numpy(gate), Tensor.from_numpy(up))
    same = np.arange(150).reshape(3, 50) != 57
    np.testing.assert_array_equal(before[same], after[same])
    assert after[1, 7] != 0
