"""The ops of the widened catalogue against torch, live."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.opspec.spec import DEFAULT_TOLERANCE


def load_torch():
    """Torch, or a skip that says why; see ``test_oracle_torch``."""
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            raise
        reason = f"no torch ({exc}); `make oracles` installs it"
        return pytest.skip(reason, allow_module_level=True)


torch = load_torch()
functional = torch.nn.functional
pytestmark = pytest.mark.oracle

COMPUTED = [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16]
every_computed = pytest.mark.parametrize("dtype", COMPUTED, ids=repr)

UNARY = {
    ops.exp: torch.exp,
    ops.expm1: torch.expm1,
    ops.log: torch.log,
    ops.log1p: torch.log1p,
    ops.sin: torch.sin,
    ops.cos: torch.cos,
    ops.tanh: torch.tanh,
    ops.sqrt: torch.sqrt,
    ops.rsqrt: torch.rsqrt,
    ops.recip: torch.reciprocal,
    ops.erf: torch.erf,
    ops.sigmoid: torch.sigmoid,
    ops.silu: functional.silu,
    ops.gelu: lambda x: functional.gelu(x, approximate="tanh"),
    ops.gelu_erf: functional.gelu,
    ops.quick_gelu: lambda x: x * torch.sigmoid(1.702 * x),
    ops.softplus: lambda x: functional.softplus(x, threshold=1e9),
    ops.abs: torch.abs,
    ops.neg: torch.neg,
    ops.sqr: torch.square,
    ops.relu: torch.relu,
    ops.sign: torch.sign,
    ops.floor: torch.floor,
    ops.ceil: torch.ceil,
    ops.trunc: torch.trunc,
    ops.round: torch.round,
}


def wide(array):
    """In f64, for torch to compute the truth in."""
    return torch.from_numpy(np.array(array, order="C").astype(np.float64))


def f64(tensor):
    """A torch result in f64, as numpy."""
    return tensor.to(torch.float64).numpy()


def tensors(*arrays):
    """Each array as a tensor."""
    return [Tensor.from_numpy(np.ascontiguousarray(a)) for a in arrays]


@pytest.fixture(scope="session")
def sums(close):
    """Compare sums that may cancel: what their parts round is allowed."""

    def check(op, truth, actual):
        rtol, atol = DEFAULT_TOLERANCE[dtypes.from_numpy(actual.dtype)]
        close(op, truth, actual, (rtol, atol + rtol))

    return check


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
@every_computed
def test_unary(run, draw, close, op, dtype):
    """Functions agree, infinities and NaN among their arguments."""
    x = draw((5, 65), dtype, 1, 3.0)
    x[0, :4] = [np.nan, np.inf, -np.inf, 0.0]
    if op in (ops.sin, ops.cos, ops.gelu, ops.gelu_erf):
        x[0, 1:3] = 1.0
    if op is ops.sign:
        x[0, 0] = 1.0  # torch has 0 for NaN
    close(op, f64(UNARY[op](wide(x))), run(op, Tensor.from_numpy(x)))


@pytest.mark.parametrize("op", [ops.gelu, ops.silu], ids=lambda op: op.name)
def test_activations_at_the_ends(run, op):
    """Infinities and large numbers give what torch gives, NaN for -inf."""
    x = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0], np.float32)
    expected = UNARY[op](torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(run(op, Tensor.from_numpy(x)), expected)


@every_computed
def test_attributes_of_unary(run, draw, close, dtype):
    """Powers, elu and clamp agree."""
    x = draw((5, 65), dtype, 1, 2.0)
    tensor = Tensor.from_numpy(x)
    close(ops.powf, f64(wide(x) ** 3), run(ops.powf, tensor, 3.0))
    close(ops.elu, f64(functional.elu(wide(x), 0.5)), run(ops.elu, tensor, 0.5))
    close(ops.clamp, f64(wide(x).clamp(-1, 0.5)), run(ops.clamp, tensor, -1, 0.5))


@pytest.mark.parametrize(
    "name", ["sub", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]
)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.i32], ids=repr)
def test_binary(run, draw, dtype, name):
    """Differences, quotients, extremes and comparisons have torch's bits."""
    a, b = draw((5, 1, 33), dtype, 1), draw((7, 33), dtype, 2)
    if dtype.is_float:
        a[0, 0, :3], b[0, :3] = [np.nan, np.inf, 0.0], [1.0, np.nan, 0.0]
    b = np.where(b == 0, 1, b).astype(dtype.numpy) if dtype.is_integer else b
    theirs = [torch.from_numpy(v) for v in (a, b)]
    if name == "div" and dtype.is_integer:
        expected = torch.div(*theirs, rounding_mode="trunc")
    else:
        expected = getattr(torch, name)(*theirs)
    np.testing.assert_array_equal(run(getattr(ops, name), *tensors(a, b)), expected.numpy())


@pytest.mark.parametrize("dims", [0, (0, 2), (0, 1, 2)])
@every_computed
def test_reductions(run, draw, close, sums, dtype, dims):
    """Sums, means, variances and extremes agree."""
    x = draw((4, 9, 33), dtype, 1)
    tensor = Tensor.from_numpy(x)
    sums(ops.sum, f64(wide(x).sum(dims)), run(ops.sum, tensor, dims))
    sums(ops.mean, f64(wide(x).mean(dims)), run(ops.mean, tensor, dims))
    for correction in (0, 1):
        truth = f64(wide(x).var(dims, correction=correction))
        close(ops.var, truth, run(ops.var, tensor, dims, correction=correction))
    close(ops.min, f64(wide(x).amin(dims)), run(ops.min, tensor, dims))
    close(ops.max, f64(wide(x).amax(dims)), run(ops.max, tensor, dims))
    sums(ops.cumsum, f64(wide(x).cumsum(1)), run(ops.cumsum, tensor, 1))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.i32], ids=repr)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(run, run_pair, draw, dtype, descending):
    """Torch's stable sort has the same order, and topk the same values."""
    x = np.rint(draw((4, 65), dtype, 1)).astype(dtype.numpy)
    if dtype.is_float:
        x[0, :3] = [np.nan, np.inf, -np.inf]
    values, indices = torch.from_numpy(x).sort(stable=True, descending=descending)
    tensor = Tensor.from_numpy(x)
    np.testing.assert_array_equal(run(ops.sort, tensor, descending=descending), values.numpy())
    np.testing.assert_array_equal(run(ops.argsort, tensor, descending=descending), indices.numpy())
    best, _ = run_pair(ops.topk, tensor, 7, largest=descending)
    expected = torch.from_numpy(x).topk(7, largest=descending).values
    np.testing.assert_array_equal(best, expected.numpy())


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_indexing(run, change, draw, dim):
    """Gathers, scatters and additions by index agree."""
    x, source = draw((4, 5, 3), dtypes.f32, 1), draw((3, 5, 3), dtypes.f32, 2)
    ids = np.random.default_rng(1).integers(0, 3, (3, 5, 3))
    theirs, where, other = (torch.from_numpy(a.copy()) for a in (x, ids, source))
    expected = theirs.gather(dim, where).numpy()
    np.testing.assert_array_equal(run(ops.gather, *tensors(x, ids), dim), expected)
    expected = theirs.scatter_add(dim, where, other).numpy()
    actual = change(ops.scatter_add, x, *tensors(ids, source), dim)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    row = np.array([2, 0, 2])
    expected = theirs.index_select(dim, torch.from_numpy(row)).numpy()
    np.testing.assert_array_equal(run(ops.index_select, *tensors(x, row), dim), expected)
    slices = np.take(x, [1, 1, 0], axis=dim) * 2
    expected = theirs.index_add(dim, torch.from_numpy(row), torch.from_numpy(slices)).numpy()
    actual = change(ops.index_add, x, *tensors(row, slices), dim)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@every_computed
def test_norms(run, draw, close, dtype):
    """Layer and group norms agree."""
    x, weight, bias = draw((2, 3, 65), dtype, 1), draw((65,), dtype, 2), draw((65,), dtype, 3)
    truth = f64(functional.layer_norm(wide(x), (65,), wide(weight), wide(bias), 1e-6))
    close(ops.layer_norm, truth, run(ops.layer_norm, *tensors(x, weight, bias), 1e-6))
    x, weight, bias = draw((2, 6, 5, 7), dtype, 1), draw((6,), dtype, 2), draw((6,), dtype, 3)
    normed = functional.group_norm(wide(x), 3, wide(weight), wide(bias), 1e-6)
    close(ops.group_norm, f64(normed), run(ops.group_norm, *tensors(x, weight, bias), 3, 1e-6))
    actual = run(ops.group_norm_silu, *tensors(x, weight, bias), 3, 1e-6)
    close(ops.group_norm_silu, f64(functional.silu(normed)), actual)
    x = draw((4, 9, 65), dtype, 1, 5.0)
    truth = f64(functional.log_softmax(wide(x), 1))
    close(ops.log_softmax, truth, run(ops.log_softmax, Tensor.from_numpy(x), 1))


@every_computed
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(run, draw, sums, dtype, groups):
    """Convolutions and their transposes agree in one and two dimensions, with all attributes."""
    attributes = {"stride": 2, "padding": 1, "dilation": 2, "groups": groups}
    x, bias = draw((2, 4, 9, 8), dtype, 1), draw((6,), dtype, 3)
    for rank, names in ((2, ("conv2d", "conv_transpose2d")), (1, ("conv1d", "conv_transpose1d"))):
        image = x if rank == 2 else x[:, :, 0]
        for name in names:
            turned = name != names[0]
            shape = (4, 6 // groups) if turned else (6, 4 // groups)
            w = draw((*shape, 3, 2)[: 2 + rank], dtype, 2, 0.3)
            extra = {"output_padding": 1} if turned else {}
            theirs = getattr(functional, name)
            truth = f64(theirs(*map(wide, (image, w, bias)), **attributes, **extra))
            op = getattr(ops, name)
            sums(op, truth, run(op, *tensors(image, w, bias), **attributes, **extra))


@every_computed
def test_remainders_and_products(run, draw, close, same, dtype):
    """Remainders have the divisor's sign; products are over some dimensions or all."""
    a, b = draw((5, 33), dtype, 1, 5.0), draw((5, 33), dtype, 2)
    truth = f64(torch.remainder(wide(a), wide(b)))
    same(truth.astype(dtype.numpy), run(ops.remainder, *tensors(a, b)))
    close(ops.prod, f64(torch.prod(wide(b), 0)), run(ops.prod, *tensors(b), 0))
    gated = functional.gelu(wide(a)) * wide(b)
    close(ops.gelu_erf_mul, f64(gated), run(ops.gelu_erf_mul, *tensors(a, b)))


@every_computed
def test_pools_and_upsampling(run, draw, close, dtype):
    """Pools and interpolations agree."""
    x = draw((2, 3, 9, 8), dtype, 1)
    (tensor,) = tensors(x)
    for counted in (True, False):
        truth = functional.avg_pool2d(wide(x), 3, 2, 1, count_include_pad=counted)
        actual = run(ops.avg_pool2d, tensor, 3, stride=2, padding=1, count_padding=counted)
        close(ops.avg_pool2d, f64(truth), actual)
    truth = functional.max_pool2d(wide(x), (3, 2), (2, 1), (1, 0), dilation=2)
    window = {"stride": (2, 1), "padding": (1, 0), "dilation": 2}
    close(ops.max_pool2d, f64(truth), run(ops.max_pool2d, tensor, (3, 2), **window))
    for size in ((18, 16), (5, 12)):
        for corners in (False, True):
            truth = functional.interpolate(wide(x), size, mode="bilinear", align_corners=corners)
            actual = run(ops.upsample_bilinear2d, tensor, size, align_corners=corners)
            close(ops.upsample_bilinear2d, f64(truth), actual)
    truth = functional.interpolate(wide(x), (18, 24))
    close(ops.upsample_nearest2d, f64(truth), run(ops.upsample_nearest2d, tensor, (18, 24)))
    unfolded = functional.unfold(wide(x), (3, 2), 2, 1, 2).transpose(1, 2)
    attributes = {"stride": 2, "padding": 1, "dilation": 2}
    close(ops.im2col, f64(unfolded), run(ops.im2col, tensor, (3, 2), **attributes))


@every_computed
@pytest.mark.parametrize("softcap", [False, True])
def test_attention(run, draw, close, dtype, softcap):
    """Masks as biases, windows and softcap agree with torch's, softcap by hand."""
    q, k, v = (draw((2, n, h, 16), dtype, n) for n, h in ((5, 4), (9, 2), (9, 2)))
    bias = draw((2, 4, 5, 9), dtype, 4)
    place = torch.arange(5)[:, None] + 4
    hidden = (torch.arange(9) > place) | (torch.arange(9) < place - 3)
    mask = wide(bias).masked_fill(hidden, float("-inf"))
    q_, k_, v_ = (wide(a).transpose(1, 2) for a in (q, k, v))
    rules = {"bias": Tensor.from_numpy(bias), "window": (3, 0)}
    if softcap:
        scores = q_ @ k_.repeat_interleave(2, 1).transpose(2, 3) / 4
        scores = 2.0 * torch.tanh(scores / 2.0) + mask
        truth = torch.softmax(scores, -1) @ v_.repeat_interleave(2, 1)
        rules["softcap"] = 2.0
    else:
        truth = functional.scaled_dot_product_attention(q_, k_, v_, attn_mask=mask, enable_gqa=True)
    close(ops.attention, f64(truth.transpose(1, 2)), run(ops.attention, *tensors(q, k, v), **rules))
