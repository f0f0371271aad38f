"""Convolutions on the simulated GPU through the simulated MIOpen, against the CPU reference."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import OpImpl
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis_rocm_miopen._descriptors import KINDS
from propolis_rocm_miopen._kept import Wanted
from propolis_rocm_miopen._problem import problem
from propolis_rocm_miopen.handle import Handle
from propolis_rocm_miopen.ops_conv import implementations


UNIT = {dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}
CASES = {
    "plain": ("conv2d", (2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    "pointwise": ("conv2d", (1, 6, 4, 5), (4, 6, 1, 1), {}),
    "strided": ("conv2d", (1, 4, 9, 8), (6, 2, 3, 2), {"stride": (2, 1), "groups": 2}),
    "dilated": ("conv2d", (1, 2, 9, 8), (3, 2, 3, 3), {"dilation": (1, 2), "padding": (0, 2)}),
    "line": ("conv1d", (2, 4, 11), (5, 4, 3), {"stride": 2, "padding": 1}),
    "video": ("conv3d", (1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"padding": (0, 1, 1)}),
    "back": (
        "conv_transpose2d",
        (1, 4, 4, 3),
        (4, 2, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": (1, 0), "groups": 2},
    ),
    "back-line": ("conv_transpose1d", (1, 3, 5), (3, 2, 4), {"stride": 2, "dilation": 2}),
}


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(rocm, on, case, dtype) -> None:
    """Each kind, with a bias and without: sums in f32, rounded once, and again with the bias."""
    op, x_shape, w_shape, attributes = CASES[case]
    x, w = on(dtype, *x_shape), on(dtype, *w_shape, seed=1)
    outs = w_shape[1] * attributes.get("groups", 1) if "transpose" in op else w_shape[0]
    biases = (None,) if dtype is dtypes.bf16 else (None, on(dtype, outs, seed=2))
    for bias in biases:
        given = [x, w] if bias is None else [x, w, bias]
        found = getattr(ops, op)(*given, **attributes).numpy().astype(np.float64)
        wide = [Tensor.from_numpy(t.numpy().astype(np.float64)) for t in given]
        expected = getattr(ops, op)(*wide, **attributes).numpy()
        absolute = [Tensor.from_numpy(np.abs(t.numpy().astype(np.float64))) for t in given]
        terms = getattr(ops, op)(*absolute, **attributes).numpy()
        allowed = 2.5 * UNIT[dtype] * (np.abs(expected) + 0.5) + 16 * UNIT[dtypes.f32] * terms
        assert expected.shape == found.shape
        assert (np.abs(found - expected) <= allowed).all()


def test_nothing(rocm, on) -> None:
    """No images give none; a sum of nothing is left to others, with the reason."""
    w = on(dtypes.f32, 4, 3, 1, 1)
    assert ops.conv2d(on(dtypes.f32, 0, 3, 5, 5), w).shape == (0, 4, 5, 5)
    takes = next(impl.supports for impl in implementations(rocm) if impl.op == "conv2d")
    empty = on(dtypes.f32, 1, 0, 5, 5)
    assert "it sums nothing" == takes(empty, on(dtypes.f32, 4, 0, 1, 1))


def offered(rocm, name, op="conv2d") -> OpImpl:
    """One of the variants of an op."""
    return next(i for i in implementations(rocm) if (i.op, i.variant) == (op, name))


def test_exact_numerics(rocm, on) -> None:
    """Who is to be exact gets no Winograd, and nothing that rounds before it adds the bias."""
    x, w, bias = on(dtypes.f16, 1, 3, 6, 6), on(dtypes.f16, 4, 3, 3, 3), on(dtypes.f16, 4)
    first, exact = offered(rocm, ""), offered(rocm, "exact")
    assert (False, True) == (first.exact, exact.exact)
    assert first.priority > exact.priority > 100 > offered(rocm, "naive").priority
    assert (None, None) == (first.supports(x, w, bias), exact.supports(x, w))
    assert "MIOpen rounds to f16 before it adds the bias" == exact.supports(x, w, bias)
    given = problem(dtypes.f16, x.shape, w.shape, (1, 4, 4, 4), 1, 0, 1, 1)
    handle = rocm.keep(Handle)
    assert 3 == handle.choose(given, Wanted()).kept.algorithm
    assert 3 != handle.choose(given, Wanted(exact=True)).kept.algorithm


def test_no_bias_in_bf16(rocm, on) -> None:
    """MIOpen refuses to add biases of bf16: such calls go to others before anything is queued."""
    given = on(dtypes.bf16, 1, 3, 6, 6), on(dtypes.bf16, 4, 3, 3, 3), on(dtypes.bf16, 4)
    for variant in ("", "exact", "naive"):
        takes = offered(rocm, variant).supports
        assert ("MIOpen adds no bias in bf16", None) == (takes(*given), takes(*given[:2]))


def test_transposes_in_16_bits(rocm) -> None:
    """
    A transposed convolution by a product writes the product's terms down in the dtype of its
    tensors, and adds them after that: terms beyond f16 are infinite where their sum is not.
    """
    handle = rocm.keep(Handle)
    sizes = (1, 4, 5, 5), (4, 3, 3, 3), (1, 3, 11, 11)
    for dtype, allowed in ((dtypes.f32, True), (dtypes.f16, False), (dtypes.bf16, False)):
        given = problem(dtype, *sizes, 2, 0, 1, 1, 0)
        for wanted in (Wanted(), Wanted(exact=True), Wanted(naive=True)):
            assert allowed == (handle.choose(given, wanted).kept.algorithm == 0)
    given = problem(dtypes.f16, (1, 4, 5, 5), (6, 4, 3, 3), (1, 6, 3, 3), 2, 1, 1, 1)
    assert 0 == handle.choose(given, Wanted()).kept.algorithm


def test_naive_solutions_go_last(rocm, on, monkeypatch) -> None:
    """A shape that MIOpen has only its naive solution for is left to kernels, if there are any."""
    for kind in ("GEMM", "WINOGRAD", "IMPLICIT_GEMM"):
        monkeypatch.setenv(f"MIOPEN_DEBUG_CONV_{kind}", "0")
    x, w = on(dtypes.f32, 1, 3, 6, 7), on(dtypes.f32, 4, 3, 3, 3)
    assert "it is the naive one" in offered(rocm, "").supports(x, w)
    assert offered(rocm, "naive").supports(x, w) is None
    assert np.isfinite(ops.conv2d(x, w).numpy()).all()


def test_a_captured_step(rocm, on, simulator) -> None:
    """A graph replays the convolution that ran before it; a shape that is new waits outside."""
    x, w = on(dtypes.f32, 1, 3, 8, 9), on(dtypes.f32, 4, 3, 3, 3)
    first = ops.conv2d(x, w).numpy()
    out = rocm.empty((1, 4, 6, 7), dtypes.f32)
    with capture(rocm) as graph:
        ops.conv2d.into(out, x, w)
    asked = simulator.hipsim_miopen_count(b"compile")
    graph.replay()
    assert np.array_equal(out.numpy(), first)
    other = on(dtypes.f32, 1, 3, 8, 9, seed=5).numpy().reshape(-1).view(np.uint8)
    rocm.copy_in(x.storage, x.layout.offset * 4, other)
    graph.replay()
    assert np.array_equal(out.numpy(), ops.conv2d(x, w).numpy())
    assert not np.array_equal(out.numpy(), first)
    assert asked == simulator.hipsim_miopen_count(b"compile")


def test_no_other_dtypes(rocm) -> None:
    """f64 and f8 are not offered: MIOpen has little for one, another format of the other."""
    assert {frozenset(KINDS)} == {frozenset(i.dtypes) for i in implementations(rocm)}
