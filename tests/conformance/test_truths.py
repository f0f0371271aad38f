"""The truths that everybody is judged by, and how far from them a result may be."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import dtypes
from propolis import ops
from propolis.opspec.tolerance import RELATIVE
from propolis.opspec.tolerance import ROUNDED
from propolis_conformance.compare import difference
from propolis_conformance.families.random import philox
from propolis_conformance.rounding import rounded
from propolis_conformance.subject import Subject
from propolis_conformance.truth import NUMPY


@pytest.mark.slow
def test_who_says_so():
    """The report tells where the reference is its own judge: the K formats' quantisation."""
    from propolis_conformance.judge import Plan
    from propolis_conformance.judge import judge

    subject = Subject("cpu_ref", "cpu")
    units = {unit.name: unit for unit in subject.units}
    for name, truth in (("qmatmul[f32,q6_k]", [NUMPY]), ("quantize[f32]", [NUMPY, "cpu_ref"])):
        assert judge(subject, units[name], Plan(), lambda _: None).truth == truth


def test_philox():
    """The known answers of Random123 (kat_vectors) for Philox 4x32-10."""
    ones = 2**128 - 1
    pi = 0x0370734413198A2E85A308D3243F6A88
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(ones, 2**64 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(pi, 0x299F31D0A4093822) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        # Just above a tie that f32 cannot tell from it.
        ([1 + 2**-8 + 2**-40], dtypes.bf16, [1 + 2**-7]),
        ([1 + 2**-4 + 2**-40], dtypes.f8e4m3, [1.125]),
        ([1 + 2**-8], dtypes.bf16, [1.0]),
        ([464.0, 464.1, -1e9], dtypes.f8e4m3, [448.0, np.nan, np.nan]),
        ([1.125 + 2**-40, 61439, 61440], dtypes.f8e5m2, [1.25, 57344.0, np.inf]),
        ([2**24 + 1, 2**62 + 1, -(2**53) - 1], dtypes.f32, [2**24, 2**62, -(2**53)]),
        ([65519.99, 65520.0], dtypes.f16, [65504.0, np.inf]),
    ],
)
def test_rounding(values, dtype, expected):
    """Once, to nearest even, whatever the libraries do on the way."""
    whole = all(isinstance(v, int) for v in values)
    given = np.array(values, np.int64 if whole else np.float64)
    np.testing.assert_array_equal(rounded(given, dtype), np.array(expected, np.float64))


def test_integers_round_once():
    """A 64-bit integer near a tie of f32 is rounded by what it is."""
    near = np.array([2**60 + 2**36 + 1], np.int64)  # f64 drops the 1, and the tie goes down
    assert rounded(near, dtypes.f32)[0] == 2**60 + 2**37
    assert rounded(near - 1, dtypes.f32)[0] == 2**60


def test_cancelling_sums_are_allowed_what_their_terms_lose():
    """An error far above the result and far below its terms is right; half precision is not."""
    truth, terms = np.array([1e-6]), np.array([1.0])
    assert difference(ops.sum, np.float32([1e-6 + 1e-6]), truth, dtypes.f32, terms) is None
    assert difference(ops.sum, np.float32([1e-6 + 1e-4]), truth, dtypes.f32, terms) is not None
    assert difference(ops.sum, np.float32([1.5e-6]), truth, dtypes.f32, 0 * terms) is not None


def test_inexact_implementations_are_allowed_more():
    """Rounded inputs are, for who declares them."""
    truth, terms, off = np.array([0.0]), np.array([1.0]), np.float32([0.005])
    given = (ops.matmul, off, truth, dtypes.f32, terms)
    assert difference(*given, exact=False) is None
    assert difference(*given) is not None


def test_what_a_part_may_lose_the_other_number_multiplies():
    """SiLU may be 0 in f32 where its exponential overflows, and so may its product; not in f64."""
    truth, up = np.array([-7.37e-32]), np.array([1e6])
    assert difference(ops.silu_mul, np.float32([0.0]), truth, dtypes.f32, up) is None
    assert difference(ops.silu_mul, np.float32([0.0]), truth, dtypes.f32, 1e-6 * up) is not None
    assert difference(ops.silu_mul, np.array([0.0]), truth, dtypes.f64, up) is not None


def test_magnitudes_that_are_not_finite_allow_nothing():
    """NaN among the terms of one element is no excuse for it."""
    truth, terms = np.array([1.0, np.nan]), np.array([np.nan, np.nan])
    wrong = difference(ops.sum, np.float32([2.0, np.nan]), truth, dtypes.f32, terms)
    assert wrong is not None
    assert wrong[0] == "values"


@pytest.mark.parametrize("table", [RELATIVE, ROUNDED], ids=["relative", "rounded"])
def test_tolerances_leave_nothing_to_hide_in(table):
    """What may be lost absolutely is below every normal number of the dtype."""
    for dtype, tolerance in table.items():
        smallest = np.float64(np.finfo(np.float64).tiny)
        if dtype is not dtypes.f64:
            smallest = float(np.nextafter(np.array(0, dtype.numpy), np.array(1, dtype.numpy)))
        assert tolerance.atol <= smallest
        assert tolerance.rtol < 0.27


def test_the_edge_of_the_range():
    """Within tolerance of the largest number, infinity and that number are both right."""
    largest = float(np.finfo(np.float32).max)
    truth = np.array([largest * (1 + 1e-7)])
    for given in (np.inf, largest):
        assert difference(ops.exp, np.float32([given]), truth, dtypes.f32) is None
    for given in (-np.inf, np.nan, 1.0):
        assert difference(ops.exp, np.float32([given]), truth, dtypes.f32) is not None


def test_sums_that_cancel_beyond_the_range():
    """Rounded activations may turn the sign of a small sum of large terms, and so an infinity's."""
    truth, terms = np.array([-1e26]), np.array([1e30])
    for given in (np.inf, -np.inf):
        found = np.float16([given])
        assert difference(ops.qmatmul, found, truth, dtypes.f16, terms, exact=False) is None
        exact = difference(ops.qmatmul, found, truth, dtypes.f16, terms)
        assert (exact is None) is (given < 0)
    nan = np.float16([np.nan])
    assert difference(ops.qmatmul, nan, truth, dtypes.f16, terms, exact=False) is not None


def test_log_softmax_of_the_largest():
    """Of a row with one that outweighs all, 0 is right: the sum of its shares is 1 in f32."""
    x = np.array([0.0, -26.0])
    truth = x - np.log(np.exp(x).sum())
    spec = ops.log_softmax
    magnitude = spec.magnitude(lambda x, _: x - np.log(np.exp(x).sum()), x, -1)
    f32 = (x - np.log(np.exp(x.astype(np.float32)).sum(dtype=np.float32))).astype(np.float32)
    assert truth[0] < 0
    assert f32[0] == 0
    assert difference(spec, f32, truth, dtypes.f32, magnitude) is None
    assert difference(spec, f32 - np.float32(1e-4), truth, dtypes.f32, magnitude) is not None


def test_no_infinite_activations_meet_blocks():
    """What becomes of them is not defined: the suite asks for none, but for NaN it does."""
    from propolis_conformance.inputs import T
    from propolis_conformance.inputs import draw

    drawn = draw(
        T("a", domain="bounded"), dtypes.f32, {"a": 999}, "special", np.random.default_rng(0)
    )
    assert np.isnan(drawn.array).any()
    assert not np.isinf(drawn.array).any()
