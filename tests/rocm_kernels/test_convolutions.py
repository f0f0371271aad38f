"""Convolutions on a device, against the CPU's of the same numbers in f64."""

from __future__ import annotations

import numpy as np
import pytest
from convolving import CASES
from convolving import ROWS
from convolving import judge_convolution as judge
from rounding import normal

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_rocm_kernels import ops_conv_matrix
from propolis_rocm_kernels._convolution import convolution
from propolis_rocm_kernels._convolution import too_far
from propolis_rocm_kernels._convolve import slices_for


VIDEOS = {
    "3x3x3": ((2, 5, 4, 6, 7), (20, 5, 3, 3, 3), {"padding": 1}),
    "uneven": (
        (1, 4, 7, 5, 9),
        (36, 2, 2, 3, 1),
        {"groups": 2, "stride": (2, 1, 3), "padding": (1, 0, 2), "dilation": (3, 2, 1)},
    ),
    "few of many": ((1, 33, 3, 4, 5), (3, 33, 3, 3, 3), {"padding": 1}),
    "depthwise": (
        (2, 3, 4, 3, 6),
        (3, 1, 3, 1, 2),
        {"groups": 3, "stride": 2, "padding": (2, 0, 1)},
    ),
    "1x1x1": ((2, 9, 2, 3, 5), (20, 9, 1, 1, 1), {}),
    "planes apart": ((2, 3, 4, 5, 6), (20, 3, 1, 3, 3), {"stride": (3, 1, 1)}),
}
TRANSPOSED = {
    "stride": ((2, 18, 5, 6), (18, 20, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "gaps": ((1, 4, 4, 5), (4, 18, 2, 3), {"stride": (4, 3), "dilation": (2, 1)}),
    "dilation": ((1, 4, 7, 5), (4, 17, 3, 3), {"stride": (3, 2), "dilation": (2, 4)}),
    "groups": ((2, 6, 4, 5), (6, 3, 3, 3), {"groups": 2, "stride": (1, 2), "padding": (2, 1)}),
    "few of many": ((1, 40, 3, 4), (40, 2, 2, 2), {"stride": 2}),
    "1x1": ((2, 9, 5, 9), (9, 20, 1, 1), {}),
    "one element": ((2, 3, 1, 1), (3, 18, 2, 3), {"stride": (1 << 31) - 1}),
}
ROWS_TRANSPOSED = {"row": ((2, 20, 9), (20, 18, 4), {"stride": 3, "output_padding": 2})}


def both(rocm, name, case, dtype):
    """With a bias and without."""
    x, w, attributes = case
    outs = w[1] * attributes.get("groups", 1) if "transpose" in name else w[0]
    tensors = normal(dtype, *x), normal(dtype, *w, seed=1), normal(dtype, outs, seed=2)
    judge(rocm, name, tensors, dtype, **attributes)
    judge(rocm, name, tensors[:2], dtype, **attributes)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_conv2d(rocm, dtype, case) -> None:
    """Each kind of convolution is what f64 gives."""
    both(rocm, "conv2d", CASES[case], dtype)


@pytest.mark.parametrize("case", CASES)
def test_conv2d_without_matrix_instructions(rocm, monkeypatch, case) -> None:
    """In 16 bits too, where an architecture has none that take all numbers."""
    monkeypatch.setattr(ops_conv_matrix, "has_instructions", lambda *_: False)
    both(rocm, "conv2d", CASES[case], dtypes.f16)


@pytest.mark.parametrize("case", ROWS)
def test_conv1d(rocm, case) -> None:
    """So are those of rows."""
    both(rocm, "conv1d", ROWS[case], dtypes.f32)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16], ids=str)
@pytest.mark.parametrize("case", VIDEOS)
def test_conv3d(rocm, dtype, case) -> None:
    """And those of videos, whose planes pad, stride and dilate as rows and columns do."""
    both(rocm, "conv3d", VIDEOS[case], dtype)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("case", TRANSPOSED)
def test_conv_transpose2d(rocm, dtype, case) -> None:
    """Each kind of transposed convolution too, where some outputs meet no tap as well."""
    both(rocm, "conv_transpose2d", TRANSPOSED[case], dtype)


@pytest.mark.parametrize("case", ROWS_TRANSPOSED)
def test_conv_transpose1d(rocm, case) -> None:
    """And those of rows."""
    both(rocm, "conv_transpose1d", ROWS_TRANSPOSED[case], dtypes.bf16)


@pytest.mark.parametrize(("name", "flat"), [("conv2d", (1,)), ("conv3d", (1, 1))])
def test_large_tiles(rocm, monkeypatch, name, flat) -> None:
    """Where there are tiles of 128 for every compute unit these are taken, edges included."""
    monkeypatch.setattr(ops_conv_matrix, "has_instructions", lambda *_: False)
    side = 128 * max(2, int(rocm.compute_units**0.5) + 1) - 3
    x, w = normal(dtypes.f16, 1, 2, *flat, side), normal(dtypes.f16, side, 2, *flat, 3, seed=1)
    judge(rocm, name, (x, w), dtypes.f16, padding=(*(0 for _ in flat), 1))


VIEWS = {
    "channels last": lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "slices": lambda t: t.narrow(3, 1, t.shape[3] - 2).narrow(2, 1, t.shape[2] - 1),
    "repeated": lambda t: t.narrow(3, 0, 1).broadcast_to(*t.shape),
    "swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(rocm, view) -> None:
    """Any strides of image, kernel and bias, of products, tiles, gathered and direct ones."""
    x = VIEWS[view](Tensor.from_numpy(normal(dtypes.f32, 2, 18, 7, 8), rocm))
    bias = (
        Tensor.from_numpy(normal(dtypes.f32, 40, seed=2), rocm)
        .reshape(20, 2)
        .narrow(1, 0, 1)
        .squeeze(1)
    )
    for outs, size in ((20, 4), (20, 1), (3, 4)):
        w = Tensor.from_numpy(normal(dtypes.f32, outs, 18, size, size, seed=1), rocm)
        w = w if size == 1 and view == "slices" else VIEWS[view](w)
        own = bias.narrow(0, 0, outs)
        judge(rocm, "conv2d", (x, w, own), dtypes.f32, padding=1 if size > 1 else 0)
        judge(
            rocm, "conv_transpose2d", (x, w.transpose(0, 1), own), dtypes.f32, stride=1 + size % 3
        )


@pytest.mark.parametrize("outs", [3, 20])
def test_views_of_videos(rocm, outs) -> None:
    """Any strides of a video and its kernel: rows of weights, and what is none."""
    x = Tensor.from_numpy(normal(dtypes.f32, 5, 6, 2, 4, 7), rocm).permute(2, 4, 1, 0, 3)
    w = Tensor.from_numpy(normal(dtypes.f32, outs, 7, 3, 2, 4, seed=1), rocm)
    for taps in (w, w.narrow(2, 1, 2), w.transpose(2, 4).contiguous().transpose(2, 4)):
        judge(rocm, "conv3d", (x, taps), dtypes.f32, padding=1)


@pytest.mark.parametrize("outs", [3, 20])
def test_infinities_stay_where_they_belong(rocm, outs) -> None:
    """An infinite weight times a padding of 0 is NaN; a transpose has nothing to multiply there."""
    x, w = normal(dtypes.f32, 1, 2, 6, 6), normal(dtypes.f32, outs, 2, 3, 3, seed=1)
    w[1, 1, 0, 0] = np.inf
    given = [Tensor.from_numpy(a, rocm) for a in (x, w)]
    y = ops.conv2d(*given, padding=1).numpy()
    assert np.isnan(y[0, 1, 0]).all()
    assert np.isnan(y[0, 1, :, 0]).all()
    assert np.isinf(y[0, 1, 1:, 1:]).all()
    assert np.isfinite(np.delete(y, 1, 1)).all()
    y = ops.conv_transpose2d(given[0], given[1].transpose(0, 1), stride=2).numpy()
    assert np.isinf(y[0, 1, :11:2, :11:2]).all()
    y[0, 1, :11:2, :11:2] = 0
    assert np.isfinite(y).all()
    y = ops.conv3d(*(t.unsqueeze(2) for t in given), padding=(1, 0, 0)).numpy()
    assert np.isnan(y[0, 1, [0, 2]]).all()
    assert np.isinf(y[0, 1, 1]).all()


def test_nothing_to_add(rocm) -> None:
    """Of no channels, and of an image that is padding alone, the bias is left."""
    bias = normal(dtypes.f32, 20)
    for x, w, padding in (((1, 0, 4, 4), (20, 0, 3, 3), 0), ((1, 3, 0, 4), (20, 3, 3, 3), 2)):
        given = (np.zeros(x, np.float32), normal(dtypes.f32, *w), bias)
        y = ops.conv2d(*(Tensor.from_numpy(a, rocm) for a in given), padding=padding).numpy()
        assert (y == bias[:, None, None]).all()


def test_transposes_have_kinds_of_output() -> None:
    """As many launches' worth of windows as there are outputs, whatever the stride."""
    x, w = ((1, 4, 5, 6), (120, 30, 6, 1)), ((4, 8, 3, 3), (72, 9, 3, 1))
    c = convolution((1, 8, 11, 21), x, w, ((2, 4), 0, (1, 2)), 1, transposed=True)
    assert (8, 6 * 6, (2, 2)) == (c.phases, c.windows, c.skip)
    w = (4, 4, 3, 3), (36, 9, 3, 1)
    assert 1 == convolution((1, 4, 3, 4), x, w, (1, 0, 1), 1, transposed=False).phases


def test_what_is_too_far_is_declined() -> None:
    """Places that 32 bits do not hold are said, of the output too."""
    assert too_far((1, 1, 1 << 20), (1, 1, 3), (1 << 10, 0, 1), transposed=False) is None
    said = too_far((1, 1, 1 << 20), (1, 1, 3), (1 << 10, 0, 1), transposed=True)
    assert "1073740803 places along a dimension; supported: 536870911" == said


def test_threads_that_share_channels() -> None:
    """Few windows of many channels are shared; many windows, or few channels, are not."""
    assert [1, 4, 32, 2] == [
        slices_for(320, 10**6, 96),
        slices_for(320, 16384, 96),
        slices_for(320, 64, 96),
        slices_for(3, 64, 96),
    ]
