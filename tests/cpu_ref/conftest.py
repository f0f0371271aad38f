"""
What the tests of ops share, as fixtures: a test folder is not a package to import from.

``run`` is how a test calls an op: it goes through the public API and checks, every
time, what must hold of every op whatever it computes.
"""

from __future__ import annotations

import numpy as np
import pytest

import propolis.runtime
from propolis import Layout
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis.opspec.spec import DEFAULT_TOLERANCE
from propolis.opspec.spec import EXACT
from propolis.runtime import set_default_runtime
from propolis.storage import CpuStorage


# Bits of precision, exponent of the least normal number, largest finite number.
FORMATS = {
    dtypes.f64: (53, -1022, float(np.finfo(np.float64).max)),
    dtypes.f32: (24, -126, float(np.finfo(np.float32).max)),
    dtypes.f16: (11, -14, 65504.0),
    dtypes.bf16: (8, -126, float.fromhex("0x1.fep127")),
    dtypes.f8e4m3: (4, -6, 448.0),
    dtypes.f8e5m2: (3, -14, 57344.0),
}
GUARD = 8


@pytest.fixture(scope="session")
def runtime():
    """The runtime whose CPU the tests' tensors live on."""
    return Runtime.start()


@pytest.fixture(scope="module", autouse=True)
def default_runtime(runtime):
    """Tensors without a device live there, as long as a file's tests run."""
    before = propolis.runtime._default
    set_default_runtime(runtime)
    yield
    set_default_runtime(before)


@pytest.fixture(scope="session")
def cpu(runtime):
    """The device under test."""
    return runtime.cpu


@pytest.fixture(scope="session")
def poisoned(cpu):
    """Make a tensor full of one byte, with memory of the same byte before and after it."""

    def make(shape, dtype, byte):
        guard = GUARD * dtype.block_bytes
        layout = Layout.contiguous(shape)
        size = dtype.nbytes(layout.numel)
        memory = np.full(guard + size + guard, byte, np.uint8)
        there = Layout(shape, layout.strides, GUARD * dtype.block_size)
        return Tensor(CpuStorage(memory), there, dtype, cpu), memory

    return make


@pytest.fixture(scope="session")
def run(poisoned):
    """
    Run an op and return its result as an array.

    Checks that the result is the same, bit for bit, allocated or written over two
    kinds of poison; that nothing beside it is written; that it is contiguous; and
    that inputs keep their bytes.
    """

    def raw(tensor):
        return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)

    def call(op, *args, **kwargs):
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        before = [tensor.storage.bytes.copy() for tensor in inputs]
        result = op(*args, **kwargs)
        assert result.is_contiguous
        assert result.numpy().flags.c_contiguous
        for byte in (0xFF, 0x55):
            out, memory = poisoned(result.shape, result.dtype, byte)
            guard = GUARD * result.dtype.block_bytes
            assert op.into(out, *args, **kwargs) is out
            np.testing.assert_array_equal(raw(result), raw(out), f"{op}: over poison {byte:x}")
            assert (memory[:guard] == byte).all(), f"{op}: wrote before out"
            assert (memory[len(memory) - guard :] == byte).all(), f"{op}: wrote after out"
        for tensor, was in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(was, tensor.storage.bytes, f"{op}: changed an input")
        return result.numpy()

    return call


@pytest.fixture(scope="session")
def run_pair(poisoned):
    """Run an op of two outputs and return both as arrays; checks what ``run`` checks."""

    def call(op, *args, **kwargs):
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        before = [tensor.storage.bytes.copy() for tensor in inputs]
        results = op(*args, **kwargs)
        for byte in (0xFF, 0x55):
            places = [poisoned(r.shape, r.dtype, byte) for r in results]
            outs = tuple(out for out, _ in places)
            assert op.into(outs, *args, **kwargs) is outs
            for result, (out, memory) in zip(results, places, strict=True):
                guard = GUARD * result.dtype.block_bytes
                assert result.numpy().tobytes() == out.numpy().tobytes(), f"{op}: over poison"
                assert (memory[:guard] == byte).all(), f"{op}: wrote before out"
                assert (memory[len(memory) - guard :] == byte).all(), f"{op}: wrote after out"
        for tensor, was in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(was, tensor.storage.bytes, f"{op}: changed an input")
        return tuple(result.numpy() for result in results)

    return call


@pytest.fixture(scope="session")
def change(lay):
    """
    Run an op that writes into its first argument, and return what it made of it.

    Checks, with the target in memory as ``how`` says, that the op returns its target,
    writes nothing beside it, and keeps the bytes of its inputs.
    """

    def call(op, array, *args, how="contiguous", **kwargs):
        target = lay(array, how)
        inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        before = [tensor.storage.bytes.copy() for tensor in inputs]
        assert op(target, *args, **kwargs) is target
        for tensor, was in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(was, tensor.storage.bytes, f"{op}: changed an input")
        result = target.numpy().copy()
        twin = lay(result, how)
        np.testing.assert_array_equal(
            twin.storage.bytes, target.storage.bytes, f"{op}: wrote beside its target"
        )
        return result

    return call


@pytest.fixture(scope="session")
def lay():
    """
    Make a tensor whose elements lie in memory as ``how`` says.

    ``repeated`` keeps only the first slice of the array and broadcasts it: take the
    truth from the tensor, not from the array.
    """

    def make(array, how="contiguous"):
        array = np.array(array, order="C")
        rank = array.ndim
        if how == "contiguous" or rank == 0:
            return Tensor.from_numpy(array)
        if how == "permuted":
            return Tensor.from_numpy(array.T.copy()).permute(*reversed(range(rank)))
        if how == "repeated":
            return Tensor.from_numpy(array[:1].copy()).broadcast_to(*array.shape)
        if how == "offset":
            flat = np.concatenate([poison(3, array.dtype), array.reshape(-1)])
            return Tensor.from_numpy(flat).narrow(0, 3, array.size).reshape(*array.shape)
        if how == "step":
            wider = poison((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wider[..., ::2] = array
            return Tensor.from_numpy(wider[..., ::2])
        assert how == "gaps"
        larger = poison([n + 2 for n in array.shape], array.dtype)
        larger[(slice(1, -1),) * rank] = array
        tensor = Tensor.from_numpy(larger)
        for dim, size in enumerate(array.shape):
            tensor = tensor.narrow(dim, 1, size)
        return tensor

    return make


def poison(shape, dtype):
    """An array whose bytes are all ones: NaN in every float dtype."""
    array = np.empty(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


@pytest.fixture(
    scope="session",
    params=["contiguous", "permuted", "repeated", "offset", "step", "gaps"],
)
def how(request):
    """Each way that ``lay`` knows."""
    return request.param


@pytest.fixture(scope="session")
def nearest():
    """
    Round f64 values once, to nearest even, to what another float dtype holds.

    The result is f64 still.  Scaling by powers of two is exact, so ``rint`` is the
    only rounding.
    """

    def rounded(values, dtype):
        precision, least, largest = FORMATS[dtype]
        values = np.asarray(values, np.float64)
        if dtype is dtypes.f64:
            return values
        with np.errstate(invalid="ignore"):  # signalling NaNs
            exponent = np.frexp(values)[1] - 1
        quantum = np.maximum(exponent, least) - (precision - 1)
        with np.errstate(all="ignore"):
            result = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
        too_large = np.nan if dtype is dtypes.f8e4m3 else np.inf
        beyond = np.abs(result) > largest
        return np.where(beyond, np.copysign(too_large, values), result)

    return rounded


@pytest.fixture(scope="session")
def same():
    """Check that an array holds exactly these f64 values; signs of zeros count, of NaNs not."""

    def check(expected, actual):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            actual = np.asarray(actual).astype(np.float64)
        expected = np.broadcast_to(np.asarray(expected, np.float64), actual.shape)
        np.testing.assert_array_equal(actual, expected)
        signs = (np.signbit(actual) != np.signbit(expected)) & ~np.isnan(expected)
        assert not signs.any(), "a zero has the wrong sign"

    return check


@pytest.fixture(scope="session")
def close(nearest):
    """
    Check a result against the truth in f64, by the tolerance of the op's spec.

    Where the truth, rounded to the result's dtype, is not finite, they must agree; and
    an exact result is the truth rounded.
    """

    def check(op, truth, actual, tolerance=None):
        dtype = dtypes.from_numpy(actual.dtype)
        # Sums that cancel are judged as loosely as everything else here; strictly in
        # propolis_conformance, which knows the magnitude of their terms.
        known = DEFAULT_TOLERANCE if op.magnitude else op.tolerance
        rtol, atol = tolerance or known[dtype]
        assert np.shape(truth) == actual.shape
        rounded = nearest(truth, dtype)
        finite = np.isfinite(rounded)
        values = actual.astype(np.float64)
        np.testing.assert_array_equal(values[~finite], rounded[~finite])
        truth = rounded if (rtol, atol) == EXACT else truth
        np.testing.assert_allclose(values[finite], truth[finite], rtol, atol, equal_nan=False)

    return check


@pytest.fixture(scope="session")
def draw():
    """Normal numbers in any plain dtype, the same for the same arguments."""

    def make(shape, dtype, seed=0, spread=1.0):
        values = np.random.default_rng([seed, *shape]).normal(0, spread, shape)
        if dtype.is_integer:
            info = np.iinfo(dtype.numpy)
            values = np.clip(values * 50 + (info.min == 0) * 100, info.min, min(info.max, 2**31))
        return np.asarray(values).astype(dtype.numpy)

    return make
