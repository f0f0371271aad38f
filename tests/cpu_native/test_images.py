"""What image models need: convolutions, norms of groups, gates; larger than conformance's cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from propolis import Tensor
from propolis import dtypes
from propolis import ops


UNIT = {dtypes.f32: 2.0**-24, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}

# (batch, channels, outputs, height, width): tiles cut off on either side, one vector of tiles, two
# and more, several blocks of channels and outputs, panels left over, rows of one pixel.
IMAGES = [
    (1, 16, 16, 4, 4),
    (2, 33, 17, 7, 9),
    (1, 40, 70, 33, 18),
    (2, 64, 64, 4, 100),
    (1, 20, 24, 64, 1),
    (3, 96, 130, 21, 22),
]


def normal(dtype, *shape, seed=0, scale=1.0):
    """Random numbers of a dtype."""
    return np.random.default_rng([seed, *shape]).normal(0, scale, shape).astype(dtype.numpy)


def convolution(x, w, bias, padding=1):
    """In f64."""
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), w.shape[2:], (2, 3))
    return np.einsum("nchwij,kcij->nkhw", seen, w, optimize=True) + bias[:, None, None]


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("sizes", IMAGES, ids=str)
@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_convolutions(runtime, dtype, sizes, numerics):
    """3 x 3: to some roundings of the terms by columns, to some dozens by tiles."""
    device = runtime(numerics=numerics).cpu
    batch, channels, outputs, height, width = sizes
    x = normal(dtype, batch, channels, height, width)
    w = normal(dtype, outputs, channels, 3, 3, seed=1, scale=(9 * channels) ** -0.5)
    bias = normal(dtype, outputs, seed=2)
    on = [Tensor.from_numpy(a, device) for a in (x, w, bias)]
    found = ops.conv2d(*on, padding=1).numpy().astype(np.float64)
    expected = convolution(*(a.astype(np.float64) for a in (x, w, bias)))
    off = np.abs(found - expected) - 1.25 * UNIT[dtype] * np.abs(expected)
    assert off.max() <= (16 if numerics == "exact" else 160) * 2.0**-22


@pytest.mark.parametrize(
    "attributes", [{"stride": 2}, {"dilation": 3, "padding": 2}, {"padding": 5}]
)
def test_other_windows(runtime, attributes):
    """Steps, gaps and wide borders, of a window of 5 x 2: as the reference has them."""
    native, reference = runtime().cpu, runtime(plugins=["cpu_ref"]).cpu
    x, w = normal(dtypes.f32, 2, 19, 31, 70), normal(dtypes.f32, 11, 19, 5, 2, seed=1, scale=0.07)
    one, other = (
        ops.conv2d(Tensor.from_numpy(x, d), Tensor.from_numpy(w, d), **attributes).numpy()
        for d in (native, reference)
    )
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_what_is_not_finite_stays_where_it_is(runtime):
    """An infinity and a NaN spoil the windows that have them, and no other pixel of their tiles."""
    device = runtime().cpu
    x, w = normal(dtypes.f32, 1, 32, 20, 20), normal(dtypes.f32, 32, 32, 3, 3, seed=1)
    x[0, 3, 5, 5], x[0, 4, 9, 9] = np.inf, np.nan
    found = ops.conv2d(
        Tensor.from_numpy(x, device), Tensor.from_numpy(w, device), padding=1
    ).numpy()
    spoilt = np.zeros((20, 20), bool)
    spoilt[4:7, 4:7] = spoilt[8:11, 8:11] = True
    assert (~np.isfinite(found[0]) == spoilt).all()


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_threads_do_not_matter(runtime, numerics):
    """The same bits from one thread and from three."""
    x, w = normal(dtypes.f32, 2, 48, 40, 44), normal(dtypes.f32, 80, 48, 3, 3, seed=1)
    one, three = (
        ops.conv2d(Tensor.from_numpy(x, d), Tensor.from_numpy(w, d), padding=1).numpy()
        for d in (runtime(numerics=numerics, threads=n).cpu for n in (1, 3))
    )
    assert np.array_equal(one, three)


@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_group_norm(runtime, dtype):
    """Groups of more elements than are summed together, far from 0, with SiLU and without."""
    device = runtime().cpu
    x = (normal(dtype, 2, 12, 41, 67) + np.float32(3)).astype(dtype.numpy)
    weight, bias = normal(dtype, 12, seed=1), normal(dtype, 12, seed=2)
    on = [Tensor.from_numpy(a, device) for a in (x, weight, bias)]
    groups = x.astype(np.float64).reshape(2, 4, -1)
    mean, var = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    expected = ((groups - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    expected = expected * weight.astype(float)[:, None, None] + bias.astype(float)[:, None, None]
    for op, truth in (
        (ops.group_norm, expected),
        (ops.group_norm_silu, expected * special.expit(expected)),
    ):
        found = op(*on, 4).numpy().astype(np.float64)
        assert (np.abs(found - truth) <= 1.25 * UNIT[dtype] * np.abs(truth) + 4e-6).all()


def test_gelu(runtime):
    """Over all that f32 tells apart from 0 and from its argument, to a millionth of that."""
    device = runtime().cpu
    x = np.linspace(-14, 14, 100001, dtype=np.float32)
    x[:4] = 0, np.inf, np.nan, -100
    gate, up = Tensor.from_numpy(x, device), Tensor.from_numpy(np.full_like(x, 2), device)
    found = ops.gelu_erf_mul(gate, up).numpy()
    wide = x.astype(np.float64)
    expected = 2 * wide * special.ndtr(wide)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    fine = np.isfinite(expected)
    assert np.array_equal(found[~fine & ~np.isnan(found)], [np.inf])
    assert (np.abs(found[fine] - expected[fine]) <= 1e-6 * np.abs(wide[fine])).all()
