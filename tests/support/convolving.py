"""Convolutions on a device, judged by the CPU's of the same numbers in f64."""

from __future__ import annotations

import numpy as np
from rounding import judge_sums

from propolis import Tensor
from propolis import ops


def judge_convolution(rocm, name, tensors, dtype, **attributes):
    """The device's result is off by its rounding, and by what sums in f32 (f64) lose."""
    given = [Tensor.from_numpy(a, rocm) if isinstance(a, np.ndarray) else a for a in tensors]
    actual = getattr(ops, name)(*given, **attributes).numpy()
    wide = [Tensor.from_numpy(t.numpy().astype(np.float64)) for t in given]
    expected = getattr(ops, name)(*wide, **attributes).numpy()
    terms = [Tensor.from_numpy(np.abs(t.numpy())) for t in wide]
    sums = getattr(ops, name)(*terms, **attributes).numpy()
    judge_sums(actual, expected, sums, dtype)


# x, w, attributes: tiles that the shape splits, tails in every direction, each way to go.
CASES = {
    "3x3": ((2, 20, 9, 11), (70, 20, 3, 3), {"padding": 1}),
    "stride": ((1, 17, 12, 9), (17, 17, 3, 3), {"stride": 2, "padding": (1, 0)}),
    "dilation": ((1, 5, 9, 13), (66, 5, 2, 3), {"dilation": (3, 2), "stride": (1, 3)}),
    "groups": ((2, 6, 8, 9), (40, 3, 3, 2), {"groups": 2, "padding": (2, 1)}),
    "depthwise": ((2, 5, 9, 33), (5, 1, 3, 3), {"groups": 5, "padding": 1}),
    "few of many": ((1, 70, 5, 7), (6, 70, 3, 3), {"padding": 1}),
    "1x1": ((3, 19, 5, 9), (67, 19, 1, 1), {}),
    "1x1 stride": ((1, 19, 5, 9), (67, 19, 1, 1), {"stride": 2}),
    "one window": ((2, 33, 3, 3), (20, 33, 3, 3), {"stride": 7}),
}
ROWS = {
    "row": ((2, 5, 200), (20, 5, 7), {"stride": 3, "padding": 3}),
    "row of groups": ((2, 6, 50), (6, 2, 3), {"groups": 3, "dilation": 2}),
    "row 1x1": ((2, 9, 65), (20, 9, 1), {}),
}
