"""Convolutions: one tap of the kernel at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_conformance.images import IMAGE
from propolis_conformance.images import IMAGE_SIZES
from propolis_conformance.images import ROW_SIZES
from propolis_conformance.images import SPREAD
from propolis_conformance.images import VIDEO_SIZES
from propolis_conformance.images import WINDOWS
from propolis_conformance.images import padded
from propolis_conformance.images import pair
from propolis_conformance.images import taps
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.images import Sizes
    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}

_STEPS: AttributeSets = (
    {},
    {"bias": None},
    {"stride": 2, "padding": 1},
    {"dilation": 2},
    {"stride": 3, "padding": 2, "dilation": 2},
)
_UNEVEN: AttributeSets = (
    {"stride": (2, 1), "padding": (0, 1)},
    {"dilation": (1, 2), "padding": (2, 1), "bias": None},
)
_GROUPS = ({"groups": 2}, {"groups": 2, "stride": 2}, {"groups": 2, "padding": 1, "dilation": 2})


def _channels(weights: Array, x: Array) -> Array:
    """Channels of each group as products: (g, o, c) times (b, g, c, sizes)."""
    columns = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    return (weights @ columns).reshape(*x.shape[:2], weights.shape[1], *x.shape[3:])


def _flat(function: Callable[..., Array]) -> Callable[..., Array]:
    """The same of images of one row."""
    neutral = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}

    def of_rows(x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> Array:
        pairs = {k: (neutral[k], n) if k in neutral else n for k, n in attributes.items()}
        return function(x[:, :, None], w[:, :, None], bias, **pairs)[:, :, 0]

    return of_rows


def _conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    total: Any = 0
    weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], math.prod(w.shape[2:]))
    for tap, (_, seen) in enumerate(taps(padded(x, padding, 0), w.shape[2:], stride, dilation)):
        split = seen.reshape(len(x), groups, w.shape[1], *seen.shape[2:])
        total = total + _channels(weights[..., tap], split)
    y = total.reshape(len(x), w.shape[0], *total.shape[3:])
    return np.asarray(y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2)))


OPS["conv1d"] = OpInfo(
    _flat(_conv),
    (
        Recipe(
            {"x": T("b c l"), "w": T("o c k"), "bias": T("o")}, _STEPS, ROW_SIZES, deep={"c": 700}
        ),
        Recipe({"x": T("b c*2 l"), "w": T("o*2 c k")}, _GROUPS, ROW_SIZES),
        Recipe(
            {"x": T("b c*16 l"), "w": T("o*16 c*16 3"), "bias": T("o*16")},
            ({"padding": 1}, {"padding": 0, "bias": None}),
            ROW_SIZES,
        ),
    ),
)
OPS["conv2d"] = OpInfo(
    _conv,
    (
        Recipe(
            {"x": T("b c h w"), "w": T("o c i j"), "bias": T("o")}, (*_STEPS, *_UNEVEN), IMAGE_SIZES
        ),
        Recipe({"x": T("b c*2 h w"), "w": T("o*2 c i j")}, _GROUPS, IMAGE_SIZES),
        # Each channel by itself; and kernels of one element, which are matrix products.
        Recipe(
            {"x": T("b 4 h w"), "w": T("4 1 i j")},
            ({"groups": 4}, {"groups": 4, "stride": 2}),
            IMAGE_SIZES,
        ),
        Recipe(
            {"x": T("b c h w"), "w": T("o c 1 1")},
            ({}, {"stride": 2}),
            IMAGE_SIZES,
            deep={"c": 700},
        ),
        # The window of most models, with channels enough for those who compute it by tiles.
        Recipe(
            {"x": T("b c*16 h w"), "w": T("o*16 c*16 3 3"), "bias": T("o*16")},
            (
                {"padding": 1},
                {"padding": 0, "bias": None},
                {"padding": (2, 1)},
                {"padding": 1, "stride": 2},
            ),
            IMAGE_SIZES,
        ),
    ),
)


_UNEVEN3: AttributeSets = (
    {"stride": (1, 2, 1), "padding": (1, 0, 1)},
    {"dilation": (2, 1, 2), "padding": (1, 1, 0), "bias": None},
)
OPS["conv3d"] = OpInfo(
    _conv,
    (
        Recipe(
            {"x": T("b c d h w"), "w": T("o c e i j"), "bias": T("o")},
            ({}, {"stride": 2, "padding": 1}, *_UNEVEN3),
            VIDEO_SIZES,
        ),
        Recipe({"x": T("b c*2 d h w"), "w": T("o*2 c e i j")}, _GROUPS[:2], VIDEO_SIZES),
    ),
)


def _conv_transpose2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    kernel = w.shape[2:]
    each = zip(*map(pair, (x.shape[2:], kernel, stride, dilation, output_padding)), strict=True)
    whole = [(n - 1) * s + d * (k - 1) + 1 + extra for n, k, s, d, extra in each]
    y = np.zeros((len(x), groups, w.shape[1], *whole))
    split = x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    (sh, sw), (dh, dw), (ph, pw) = map(pair, (stride, dilation, padding))
    for i, j in np.ndindex(*kernel):
        rows = slice(i * dh, i * dh + sh * (x.shape[2] - 1) + 1, sh)
        columns = slice(j * dw, j * dw + sw * (x.shape[3] - 1) + 1, sw)
        y[..., rows, columns] += _channels(weights[..., i, j].transpose(0, 2, 1), split)
    y = y[..., ph : whole[0] - ph, pw : whole[1] - pw]
    y = y.reshape(len(x), groups * w.shape[1], *y.shape[3:])
    return np.asarray(y if bias is None else y + bias[:, None, None])


_MORE: AttributeSets = (
    {"stride": 2, "output_padding": 1},
    {"dilation": 2, "output_padding": 1, "padding": 1},
)
_MORE2: AttributeSets = ({"stride": (2, 3), "output_padding": (0, 2), "padding": (1, 0)},)
_GROUPS_T = (*_GROUPS, {"groups": 2, "stride": 2, "output_padding": 1})
_T2 = (*_STEPS, *_UNEVEN, *_MORE, *_MORE2)
OPS["conv_transpose1d"] = OpInfo(
    _flat(_conv_transpose2d),
    (
        Recipe({"x": T("b c l"), "w": T("c o k"), "bias": T("o")}, (*_STEPS, *_MORE), ROW_SIZES),
        Recipe({"x": T("b c*2 l"), "w": T("c*2 o k")}, _GROUPS_T, ROW_SIZES),
    ),
)
OPS["conv_transpose2d"] = OpInfo(
    _conv_transpose2d,
    (
        Recipe({"x": T("b c h w"), "w": T("c o i j"), "bias": T("o")}, _T2, IMAGE_SIZES),
        Recipe({"x": T("b c*2 h w"), "w": T("c*2 o i j")}, _GROUPS_T, IMAGE_SIZES),
    ),
)


def _im2col(
    x: Array, kernel: Sizes, *, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1
) -> Array:
    seen = [s for _, s in taps(padded(x, padding, 0), kernel, stride, dilation)]
    windows = np.stack(seen, 2)  # (batch, channels, taps, rows, columns)
    b, c, count, rows, columns = windows.shape
    return windows.transpose(0, 3, 4, 1, 2).reshape(b, rows * columns, c * count)


OPS["im2col"] = OpInfo(_im2col, (Recipe(IMAGE, (*WINDOWS, *SPREAD), IMAGE_SIZES),))
