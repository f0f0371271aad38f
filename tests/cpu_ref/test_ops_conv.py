"""Convolutions, their transposes and im2col against loops over their definitions in f64."""

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
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.opspec.spec import DEFAULT_TOLERANCE


PLAIN = [d for d in dtypes.ALL if d in dtypes.PLAIN]
FLOATS = [d for d in PLAIN if d.is_float]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def pair(sizes):
    """One number for both dimensions, or one for each."""
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def conv2d(x, w, bias=None, *, stride=1, padding=0, dilation=1, groups=1):
    """Window by window and tap by tap, in f64."""
    (sh, sw), (ph, pw), (dh, dw) = map(pair, (stride, padding, dilation))
    x, w = x.astype(np.float64), w.astype(np.float64)
    batch, _, height, width = x.shape
    out_channels, per_group, kh, kw = w.shape
    rows = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    columns = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    result = np.zeros((batch, out_channels, rows, columns))
    for o, i, j, a, b in np.ndindex(out_channels, rows, columns, kh, kw):
        y, z = i * sh - ph + a * dh, j * sw - pw + b * dw
        if 0 <= y < height and 0 <= z < width:
            first = o // (out_channels // groups) * per_group
            result[:, o, i, j] += x[:, first : first + per_group, y, z] @ w[o, :, a, b]
    return result if bias is None else result + bias.astype(np.float64)[:, None, None]


def conv_transpose2d(
    x, w, bias=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1
):
    """Each input element adds its kernel, in f64."""
    (sh, sw), (ph, pw), (dh, dw), (eh, ew) = map(pair, (stride, padding, dilation, output_padding))
    x, w = x.astype(np.float64), w.astype(np.float64)
    batch, channels, height, width = x.shape
    _, per_group, kh, kw = w.shape
    rows = (height - 1) * sh - 2 * ph + dh * (kh - 1) + eh + 1
    columns = (width - 1) * sw - 2 * pw + dw * (kw - 1) + ew + 1
    result = np.zeros((batch, per_group * groups, rows, columns))
    for c, i, j, a, b in np.ndindex(channels, height, width, kh, kw):
        y, z = i * sh - ph + a * dh, j * sw - pw + b * dw
        if 0 <= y < rows and 0 <= z < columns:
            first = c // (channels // groups) * per_group
            result[:, first : first + per_group, y, z] += x[:, c, i, j, None] * w[c, :, a, b]
    return result if bias is None else result + bias.astype(np.float64)[:, None, None]


def one(function):
    """The oracle of one dimension: two with a height of 1."""

    def call(x, w, bias=None, **attributes):
        start = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
        high = {k: (start[k], v) if k in start else v for k, v in attributes.items()}
        return function(x[:, :, None], w[:, :, None], bias, **high)[:, :, 0]

    return call


OPS = {
    ops.conv1d: one(conv2d),
    ops.conv2d: conv2d,
    ops.conv_transpose1d: one(conv_transpose2d),
    ops.conv_transpose2d: conv_transpose2d,
}
ATTRIBUTES = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"stride": 3, "padding": 2, "dilation": 2, "groups": 2},
]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def drawn(draw, op, dtype, *, groups=1, batch=2, size=7, kernel=3):
    """An image of 4 channels, weights to 6 and a bias."""
    spatial = 2 if op.name.endswith("2d") else 1
    x = draw((batch, 4, *(size, size + 1)[:spatial]), dtype, 1)
    taps = (kernel, kernel - 1)[:spatial] if kernel > 1 else (1,) * spatial
    shape = (4, 6 // groups, *taps) if "transpose" in op.name else (6, 4 // groups, *taps)
    return x, draw(shape, dtype, 2, 0.3), draw((6,), dtype, 3)


@pytest.fixture(scope="session")
def check(run, close):
    """Check a call against its oracle, with sums that cancel allowed what their parts round."""

    def call(op, arrays, layouts=None, **attributes):
        tensors = layouts or [Tensor.from_numpy(a) for a in arrays]
        actual = run(op, *tensors, **attributes)
        truth = OPS[op](*arrays, **attributes)
        rtol, atol = DEFAULT_TOLERANCE[tensors[0].dtype]
        close(op, truth, actual, (rtol, atol + rtol))

    return call


@every_op
@every_float
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_attributes(check, draw, op, dtype, attributes):
    """Strides, padding, dilation and groups, alone and together, in every float dtype."""
    x, w, bias = drawn(draw, op, dtype, groups=attributes.get("groups", 1))
    check(op, (x, w), **attributes)
    check(op, (x, w, bias), **attributes)


@every_op
def test_layouts(check, draw, lay, how, op):
    """Images, weights and biases may lie anywhere."""
    for dtype in (dtypes.f32, dtypes.bf16):
        layouts = [lay(a, how) for a in drawn(draw, op, dtype)]
        check(op, [t.numpy() for t in layouts], layouts, stride=2, padding=1)


@pytest.mark.parametrize("op", [ops.conv2d, ops.conv_transpose2d], ids=lambda op: op.name)
def test_a_number_for_each_dimension(check, draw, op):
    """Height and width may differ in every attribute."""
    arrays = drawn(draw, op, dtypes.f64)
    attributes = {"stride": (2, 3), "padding": (0, 2), "dilation": (3, 1)}
    check(op, arrays, **attributes)
    if op is ops.conv_transpose2d:
        check(op, arrays, output_padding=(2, 1), **attributes)
    check(op, arrays, stride=[2, 1])


@pytest.mark.parametrize("op", [ops.conv1d, ops.conv_transpose1d], ids=lambda op: op.name)
def test_one_dimension_may_be_a_tuple(check, run, draw, op):
    """Attributes of one dimension may come as tuples of one number."""
    arrays = [Tensor.from_numpy(a) for a in drawn(draw, op, dtypes.f32)]
    actual = run(op, *arrays, stride=(2,), padding=(1,), dilation=(1,))
    np.testing.assert_array_equal(run(op, *arrays, stride=2, padding=1), actual)


@pytest.mark.parametrize("op", [ops.conv_transpose1d, ops.conv_transpose2d], ids=lambda o: o.name)
@pytest.mark.parametrize(("stride", "dilation"), [(3, 1), (1, 3), (2, 2)])
def test_output_padding(check, draw, op, stride, dilation):
    """Extra elements at the end belong to the result, below stride or dilation."""
    arrays = drawn(draw, op, dtypes.f32)
    for extra in range(max(stride, dilation)):
        check(op, arrays, stride=stride, dilation=dilation, output_padding=extra)
    layouts, extra = [Tensor.from_numpy(a) for a in arrays], max(stride, dilation)
    with pytest.raises(OpError, match=rf"{op.name}: output_padding .* must be below stride"):
        op(*layouts, stride=stride, dilation=dilation, output_padding=extra)


@every_float
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"stride": 2, "padding": 1, "groups": 2},
        {"stride": (1, 2, 1), "dilation": (2, 1, 2), "padding": (1, 0, 2)},
    ],
    ids=str,
)
def test_conv3d(run, draw, close, dtype, attributes):
    """A convolution over three dimensions is the sum of those of its planes."""
    groups = attributes.get("groups", 1)
    x, w = draw((2, 4, 5, 6, 7), dtype, 1), draw((6, 4 // groups, 3, 2, 3), dtype, 2, 0.3)
    bias = draw((6,), dtype, 3)
    given = {"stride": 1, "padding": 0, "dilation": 1, **attributes}
    steps, pads, spread = (
        (n,) * 3 if isinstance(n := given[name], int) else n
        for name in ("stride", "padding", "dilation")
    )
    depth = (5 + 2 * pads[0] - spread[0] * 2 - 1) // steps[0] + 1
    flat = {"stride": steps[1:], "padding": pads[1:], "dilation": spread[1:], "groups": groups}
    zeros = np.zeros_like(conv2d(x[:, :, 0], w[:, :, 0], **flat))
    planes = []
    for out in range(depth):
        at = [(out * steps[0] - pads[0] + tap * spread[0], tap) for tap in range(3)]
        parts = [conv2d(x[:, :, z], w[:, :, tap], **flat) for z, tap in at if 0 <= z < 5]
        planes.append(sum(parts, zeros))
    truth = np.stack(planes, 2) + bias.astype(np.float64)[:, None, None, None]
    rtol, atol = DEFAULT_TOLERANCE[dtype]
    actual = run(ops.conv3d, *(Tensor.from_numpy(a) for a in (x, w, bias)), **attributes)
    close(ops.conv3d, truth, actual, (rtol, atol + rtol))


@every_op
def test_depthwise(check, draw, op):
    """As many groups as channels, with more outputs than inputs."""
    spatial = 2 if op.name.endswith("2d") else 1
    x = draw((2, 3, *(5, 6)[:spatial]), dtypes.f32, 1)
    shape = (3, 2) if "transpose" in op.name else (6, 1)
    w = draw((*shape, *(3, 2)[:spatial]), dtypes.f32, 2)
    check(op, (x, w), groups=3, padding=1)


@every_op
def test_empty(run, op):
    """No batch and no output channels give nothing; of no input channels sums are 0."""
    spatial = 2 if op.name.endswith("2d") else 1
    sizes, taps = (5, 5)[:spatial], (3, 3)[:spatial]
    out = (7, 7)[:spatial] if "transpose" in op.name else (3, 3)[:spatial]
    for batch, channels, outs in ((0, 4, 6), (2, 4, 0), (2, 0, 6)):
        shape = (channels, outs) if "transpose" in op.name else (outs, channels)
        x, w = np.ones((batch, channels, *sizes), np.float32), np.ones((*shape, *taps), np.float32)
        actual = run(op, Tensor.from_numpy(x), Tensor.from_numpy(w))
        assert (batch, outs, *out) == actual.shape
        assert not actual.any()


@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    taps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_sizes(check, draw, sizes, taps, stride, padding, dilation, groups):
    """Any sizes agree with the definitions, or nothing fits and that is an error."""
    attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w = draw((2, 2 * groups, *sizes), dtypes.f64), draw((2 * groups, 2, *taps), dtypes.f64)
    for op in (ops.conv2d, ops.conv_transpose2d):
        try:
            check(op, (x, w), **attributes)
        except ShapeError as exc:
            assert "exceeds" in str(exc) or "cuts everything" in str(exc)  # noqa: PT017


@every_float
def test_sums_are_wide(run, dtype):
    """Sums of narrow floats are in f32: 600 ones are 600, and large ones cancel."""
    x = Tensor.from_numpy(np.ones((1, 256, 1), dtype.numpy))
    w = Tensor.from_numpy(np.ones((1, 256, 1), dtype.numpy))
    assert float(run(ops.conv1d, x, w).astype(np.float64).item()) == 256


@pytest.mark.parametrize("dtype", PLAIN, ids=repr)
@pytest.mark.parametrize(
    "attributes",
    [{}, {"stride": 2, "padding": 1}, {"dilation": (2, 1), "padding": (0, 2)}],
    ids=str,
)
def test_im2col(run, draw, dtype, attributes):
    """Every dtype: rows are windows, channel by channel and tap by tap, zeros outside."""
    x = draw((2, 3, 5, 6), dtype, 1)
    kernel = (3, 2)
    (sh, sw), (ph, pw), (dh, dw) = (
        pair(attributes.get(k, d)) for k, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    rows = (5 + 2 * ph - dh * 2 - 1) // sh + 1
    columns = (6 + 2 * pw - dw - 1) // sw + 1
    expected = np.zeros((2, rows, columns, 3, *kernel), dtype.numpy)
    for i, j, a, b in np.ndindex(rows, columns, *kernel):
        y, z = i * sh - ph + a * dh, j * sw - pw + b * dw
        if 0 <= y < 5 and 0 <= z < 6:
            expected[:, i, j, :, a, b] = x[:, :, y, z]
    actual = run(ops.im2col, Tensor.from_numpy(x), kernel, **attributes)
    assert (2, rows * columns, 18) == actual.shape
    assert expected.tobytes() == actual.tobytes()


def test_im2col_layouts(run, lay, draw, how):
    """The image may lie anywhere, and have no elements."""
    x = lay(draw((2, 3, 5, 4), dtypes.i16), how)
    plain = Tensor.from_numpy(x.numpy().copy())
    np.testing.assert_array_equal(run(ops.im2col, plain, 2), run(ops.im2col, x, 2))
    nobody = Tensor.from_numpy(np.empty((0, 3, 5, 4), np.float32))
    assert (0, 12, 12) == run(ops.im2col, nobody, 2).shape


@every_op
def test_errors(op):
    """Channels, ranks, dtypes and sizes that do not fit are errors that name the op."""
    spatial = 2 if op.name.endswith("2d") else 1

    def ones(*shape, dtype=np.float32):
        return Tensor.from_numpy(np.ones(shape[: 2 + spatial], dtype))

    x, w = ones(1, 4, 5, 5), ones(4, 4, 3, 3)
    rule = rf"{op.name}: x is \(batch, in, sizes\), w is .* groups"
    for bad in (ones(3, 5, 3, 3), Tensor.from_numpy(np.ones((4, 4), np.float32)), ones(4, 4, 0, 3)):
        with pytest.raises(ShapeError, match=rule):
            op(x, bad)
    with pytest.raises(ShapeError, match=rule):
        op(x, w, groups=3)
    with pytest.raises(DTypeError, match=rf"{op.name}: x is f32, w is f16"):
        op(x, ones(4, 4, 3, 3, dtype=np.float16))
    with pytest.raises(DTypeError, match=rf"{op.name}: x is i32; supported: f64"):
        op(ones(1, 4, 5, 5, dtype=np.int32), ones(4, 4, 3, 3, dtype=np.int32))
    with pytest.raises(ShapeError, match=rf"{op.name}: bias is \(4,\); got bias \(3,\)"):
        op(x, w, Tensor.from_numpy(np.ones(3, np.float32)))
    with pytest.raises(DTypeError, match=rf"{op.name}: x is f32, bias is f64"):
        op(x, w, Tensor.from_numpy(np.ones(4)))
    for name, value in (("stride", 0), ("padding", -1), ("dilation", 0), ("stride", (1, 1, 1))):
        with pytest.raises(OpError, match=rf"{op.name}: {name} .* must be {spatial} numbers"):
            op(x, w, **{name: value})
    for value in (np.int64(1), (np.int64(1),) * spatial, np.ones(spatial, int), 1.0):
        with pytest.raises(OpError, match=rf"{op.name}: stride .* must be of int, not of"):
            op(x, w, stride=value)
    with pytest.raises(OpError, match=rf"{op.name}: groups .*1.* must be an int of at least 1"):
        op(x, w, groups=np.int64(1))
    with pytest.raises(OpError, match=rf"{op.name}: groups 0 must be an int of at least 1"):
        op(x, w, groups=0)
    with pytest.raises(ShapeError, match=rf"{op.name}: .*(exceeds the input|cuts everything)"):
        op(x, w, **({"padding": 4} if "transpose" in op.name else {"dilation": 3}))
    if "transpose" in op.name:
        with pytest.raises(ShapeError, match=rf"{op.name}: .*input \(0,"):
            op(ones(1, 4, 0, 5), w, stride=2)


def test_im2col_errors():
    """Other ranks and kernels that do not fit are errors."""
    x = Tensor.from_numpy(np.ones((1, 2, 3, 3), np.float32))
    with pytest.raises(ShapeError, match=r"im2col: x is \(batch, channels, height, width\)"):
        ops.im2col(Tensor.from_numpy(np.ones((2, 3, 3), np.float32)), 2)
    with pytest.raises(OpError, match=r"im2col: kernel 0 must be 2 numbers"):
        ops.im2col(x, 0)
    with pytest.raises(ShapeError, match=r"im2col: a kernel of \(4, 1\) .* exceeds the input"):
        ops.im2col(x, (4, 1))
