"""layer_norm, group_norm and the fused norms against their definitions in f64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


FLOATS = [d for d in dtypes.ALL if d in dtypes.FLOATS]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=repr)


def standardized(x, axes, eps):
    """Mean 0 and variance 1 over some axes, in f64."""
    x = x.astype(np.float64)
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        centred = x - x.mean(axis=axes, keepdims=True)
        return centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + eps)


def layer_norm(x, weight, bias=None, eps=1e-5):
    """Over the last dimension."""
    y = standardized(x, -1, eps) * weight.astype(np.float64)
    return y if bias is None else y + bias.astype(np.float64)


def group_norm(x, weight, bias, groups, eps=1e-5):
    """Over each group's channels and positions."""
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = standardized(parts, tuple(range(2, parts.ndim)), eps).reshape(x.shape)
    column = (-1, *(1 for _ in x.shape[2:]))
    weight, bias = (a.astype(np.float64).reshape(column) for a in (weight, bias))
    return y * weight + bias


def silu(x):
    """``x * sigmoid(x)`` in f64."""
    return x * special.expit(x)


def tensors(*arrays):
    """Each array as a tensor."""
    return [Tensor.from_numpy(np.asarray(a)) for a in arrays]


@every_float
@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 129), (4, 1), (1, 1, 576)])
def test_layer_norm(run, draw, close, dtype, shape, eps):
    """Every float dtype, with and without bias, with any eps."""
    x, weight, bias = draw(shape, dtype, 1), draw(shape[-1:], dtype, 2), draw(shape[-1:], dtype, 3)
    close(ops.layer_norm, layer_norm(x, weight, None, eps), run(
        ops.layer_norm, *tensors(x, weight), eps=eps,
    ))  # fmt: skip
    actual = run(ops.layer_norm, *tensors(x, weight, bias), eps)
    close(ops.layer_norm, layer_norm(x, weight, bias, eps), actual)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)])
def test_layer_norm_of_nothing(run, shape):
    """Tensors without elements have none afterwards."""
    x, weight = tensors(np.ones(shape, np.float32), np.ones(shape[-1:], np.float32))
    assert shape == run(ops.layer_norm, x, weight).shape
    assert shape == run(ops.layer_norm, x, weight, weight).shape


def test_layer_norm_layouts(run, lay, draw, close, how):
    """Rows, weights and biases may lie anywhere."""
    for dtype in (dtypes.f32, dtypes.bf16):
        x, weight, bias = (
            lay(draw(s, dtype, i), how) for i, s in enumerate(((3, 4, 6), (6,), (6,)))
        )
        truth = layer_norm(*(t.numpy() for t in (x, weight, bias)))
        close(ops.layer_norm, truth, run(ops.layer_norm, x, weight, bias))


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=repr)
def test_nan_and_infinities(run, same, dtype):
    """A row with NaN or an infinity is NaN throughout, others are not."""
    x = np.array([[1, np.nan, 2], [np.inf, 0, 1], [1, 1, 1]], dtype.numpy)
    one = np.ones(3, dtype.numpy)
    expected = [[np.nan] * 3, [np.nan] * 3, [0.0] * 3]
    same(expected, run(ops.layer_norm, *tensors(x, one)))
    same(expected, run(ops.group_norm, *tensors(x[:, :, None], one, one * 0), 1)[:, :, 0])


def test_far_from_zero(run, close):
    """The mean is taken off first: a large one costs its own rounding, not its square."""
    x = np.array([[4096.0 + 1, 4096 - 1, 4096 + 3, 4096 - 3]], np.float32)
    one = np.ones(4, np.float32)
    close(ops.layer_norm, layer_norm(x, one), run(ops.layer_norm, *tensors(x, one)))
    truth = group_norm(x[:, :, None], one, one, 1)
    close(ops.group_norm, truth, run(ops.group_norm, *tensors(x[:, :, None], one, one), 1))


@every_float
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (2, 1, 3)])
@pytest.mark.parametrize("op", [ops.group_norm, ops.group_norm_silu], ids=lambda op: op.name)
def test_group_norm(run, draw, close, dtype, groups, sizes, op):
    """Any number of groups and of positions, alone and followed by silu."""
    x = draw((2, 6, *sizes), dtype, 1)
    weight, bias = draw((6,), dtype, 2), draw((6,), dtype, 3)
    truth = group_norm(x, weight, bias, groups)
    truth = silu(truth) if op is ops.group_norm_silu else truth
    close(op, truth, run(op, *tensors(x, weight, bias), groups))
    truth = group_norm(x, weight, bias, groups, 0.5)
    truth = silu(truth) if op is ops.group_norm_silu else truth
    close(op, truth, run(op, *tensors(x, weight, bias), groups=groups, eps=0.5))


@pytest.mark.parametrize("op", [ops.group_norm, ops.group_norm_silu], ids=lambda op: op.name)
@pytest.mark.parametrize("given", [(), ("weight",), ("bias",)], ids=str)
def test_group_norm_without(run, draw, op, given):
    """Without a weight it is 1, without a bias 0, bit for bit."""
    x, weight, bias = (
        draw((2, 6, 5), dtypes.f32, 1),
        draw((6,), dtypes.f32, 2),
        draw((6,), dtypes.f32),
    )
    plain = weight if "weight" in given else np.ones_like(weight)
    shift = bias if "bias" in given else np.zeros_like(bias)
    (x_, weight_, bias_) = tensors(x, weight, bias)
    some = weight_ if "weight" in given else None, bias_ if "bias" in given else None
    expected = run(op, x_, *tensors(plain, shift), 3)
    np.testing.assert_array_equal(expected, run(op, x_, *some, 3))


@pytest.mark.parametrize("op", [ops.group_norm, ops.group_norm_silu], ids=lambda op: op.name)
def test_group_norm_layouts(run, lay, draw, how, op):
    """Images, weights and biases may lie anywhere; none give none."""
    x, *rest = (lay(draw(s, dtypes.f32, i), how) for i, s in enumerate(((2, 6, 4), (6,), (6,))))
    plain = tensors(*(t.numpy().copy() for t in (x, *rest)))
    np.testing.assert_array_equal(run(op, *plain, 3), run(op, x, *rest, 3))
    for shape in ((0, 6, 4), (2, 6, 0)):
        empty = Tensor.from_numpy(np.empty(shape, np.float32))
        assert shape == run(op, empty, *rest, 3).shape
    nothing = tensors(np.empty((2, 0, 4), np.float32), *(np.empty(0, np.float32),) * 2)
    assert (2, 0, 4) == run(op, *nothing, 1).shape


@every_float
@pytest.mark.parametrize("shape", [(5,), (2, 3, 129), (3, 0), (0, 3), (1, 1, 576)])
def test_add_rms_norm(run_pair, draw, close, nearest, same, dtype, shape):
    """The sum, rounded once, and the rms norm of what was rounded."""
    x, residual, weight = draw(shape, dtype, 1), draw(shape, dtype, 2), draw(shape[-1:], dtype, 3)
    total, normed = run_pair(ops.add_rms_norm, *tensors(x, residual, weight), 1e-6)
    wide = x.astype(np.float64) + residual.astype(np.float64)
    same(nearest(wide, dtype), total)
    wide = nearest(wide, dtype)
    square = np.square(wide).sum(axis=-1, keepdims=True) / max(shape[-1], 1)
    close(ops.add_rms_norm, wide / np.sqrt(square + 1e-6) * weight.astype(np.float64), normed)
    alone = ops.rms_norm(Tensor.from_numpy(total.copy()), Tensor.from_numpy(weight), 1e-6)
    assert alone.numpy().tobytes() == normed.tobytes()


def test_add_rms_norm_layouts(run_pair, lay, draw, how):
    """Both inputs and the weight may lie anywhere."""
    given = [lay(draw(s, dtypes.f16, i), how) for i, s in enumerate(((3, 4, 6), (3, 4, 6), (6,)))]
    plain = tensors(*(t.numpy().copy() for t in given))
    for expected, actual in zip(
        run_pair(ops.add_rms_norm, *plain), run_pair(ops.add_rms_norm, *given), strict=True
    ):
        np.testing.assert_array_equal(expected, actual)


def test_errors():
    """Shapes, dtypes and groups that do not fit are errors that name the op."""
    x, three, four, half = tensors(
        *(np.ones(s, np.float32) for s in ((2, 4), 3, 4)), np.ones(4, "e")
    )
    with pytest.raises(ShapeError, match=r"layer_norm: x is \(..., width\), weight is \(width,\)"):
        ops.layer_norm(x, three)
    with pytest.raises(ShapeError, match=r"layer_norm: bias is \(width,\); got .*bias \(3,\)"):
        ops.layer_norm(x, four, three)
    with pytest.raises(DTypeError, match=r"layer_norm: x is f32, weight is f16"):
        ops.layer_norm(x, half)
    with pytest.raises(DTypeError, match=r"layer_norm: x is f32, bias is f16"):
        ops.layer_norm(x, four, half)
    with pytest.raises(ShapeError, match=r"add_rms_norm: x and residual are"):
        ops.add_rms_norm(x, four, four)
    with pytest.raises(DTypeError, match=r"add_rms_norm: .*weight is f16"):
        ops.add_rms_norm(x, x, half)
    for op in (ops.group_norm, ops.group_norm_silu):
        with pytest.raises(ShapeError, match=rf"{op.name}: x is \(batch, channels, ...\), weight"):
            op(x, four, three, 2)
        with pytest.raises(DTypeError, match=rf"{op.name}: .*bias is f16"):
            op(x, four, half, 2)
        for groups in (0, 3):
            with pytest.raises(OpError, match=rf"{op.name}: groups {groups} must divide the 4 ch"):
                op(x, four, four, groups)


@pytest.mark.parametrize("eps", [-1e-5, float("nan"), float("inf")])
def test_eps(eps):
    """What is added to a mean square is a finite number that keeps its root one."""
    x, width, channels = (Tensor.from_numpy(np.ones(n, np.float32)) for n in ((2, 4), 4, 4))
    said = "eps is .*; allowed: a finite number, at least 0"
    for op in (ops.rms_norm, ops.layer_norm):
        with pytest.raises(OpError, match=f"{op.name}: {said}"):
            op(x, width, eps=eps)
    with pytest.raises(OpError, match=f"add_rms_norm: {said}"):
        ops.add_rms_norm(x, x, width, eps=eps)
    for op in (ops.group_norm, ops.group_norm_silu):
        with pytest.raises(OpError, match=f"{op.name}: {said}"):
            op(x, channels, channels, 2, eps=eps)
