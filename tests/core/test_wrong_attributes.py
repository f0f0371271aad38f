"""What is no number is refused where one is wanted, and read-only memory where one writes."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError


ARRAYS = {
    "x": np.ones((2, 8), np.float32),
    "w": np.ones(8, np.float32),
    "q": np.ones((1, 2, 1, 8), np.float32),
    "image": np.ones((1, 3, 8, 8), np.float32),
    "taps": np.ones((4, 3, 3, 3), np.float32),
}


def tensors(*names):
    """Those of that name; other values as they are."""
    return [
        Tensor.from_numpy(ARRAYS[n]) if isinstance(n, str) and n in ARRAYS else n for n in names
    ]


@pytest.mark.parametrize(
    ("op", "args", "attributes", "said"),
    [
        (ops.rms_norm, ("x", "w"), {"eps": None}, "eps is None; allowed: a number"),
        (ops.rms_norm, ("x", "w", "a"), {}, "eps is 'a'; allowed: a number"),
        (ops.layer_norm, ("x", "w", "w"), {"eps": None}, "eps is None"),
        (
            ops.attention,
            ("q", "q", "q"),
            {"scale": [1]},
            r"scale is \[1\]; allowed: a number, or None",
        ),
        (ops.affine, ("x", "a", 1), {}, "mul is 'a'"),
        (
            ops.affine,
            ("x", 10**400, 1),
            {},
            r"mul is 10{59}; allowed: a number below 2\*\*1023",
        ),
        (ops.clamp, ("x", "a", 1.0), {}, "low is 'a'; allowed: a number"),
        (ops.topk, ("x", "3"), {}, "k is '3'; allowed: an integer"),
        (ops.uniform, ("x",), {"seed": "1"}, "seed is '1'; allowed: an integer"),
        (ops.max, ("x",), {"keepdim": "a"}, "keepdim is 'a'; allowed: True or False"),
        (ops.softmax, ("x",), {"dim": True}, "dim is True; allowed: an integer"),
        (ops.conv2d, ("image", "taps"), {"stride": 2**63}, "stride .* and below 2\\*\\*31"),
    ],
)
def test_what_is_no_number(op, args, attributes, said) -> None:
    """The error names the attribute and what it may be, whatever an implementation would take."""
    with pytest.raises(OpError, match=f"{op.name}: {said}"):
        op(*tensors(*args), **attributes)


@pytest.mark.parametrize("number", [-3, 0, True, -(2**1000), 2**1000])
def test_whole_numbers(number) -> None:
    """Whole numbers are numbers, of either sign, until a float holds none so large."""
    x = Tensor.from_numpy(np.ones(3, np.float64))
    assert [float(number)] * 3 == ops.affine(x, number, 0).numpy().tolist()
    with pytest.raises(OpError, match=r"mul is -10*; allowed: a number below 2\*\*1023"):
        ops.affine(x, -(10**400), 0)


@pytest.mark.parametrize("eps", [1e-5, np.float32(1e-5), np.float64(1e-5), 1, np.int64(1)])
def test_numbers_of_numpy(eps) -> None:
    """NumPy's numbers are numbers."""
    assert (2, 8) == ops.rms_norm(*tensors("x", "w"), eps=eps).shape
    assert (2, 8) == ops.softmax(*tensors("x"), dim=np.int64(1)).shape


@pytest.mark.parametrize(
    "write",
    [
        lambda out, x: ops.add.into(out, out, x),
        ops.softmax.into,
        lambda out, _: ops.fill(out, 1.0),
        ops.assign,
        ops.copy.into,
    ],
)
def test_a_read_only_destination(write) -> None:
    """Memory that is only read is refused as a destination."""
    array = np.zeros((2, 8), np.float32)
    array.setflags(write=False)
    with pytest.raises(OpError, match=r"read-only .*: ops\.copy makes a tensor"):
        write(Tensor.from_numpy(array), *tensors("x"))
    assert not array.any()


def test_a_masked_array() -> None:
    """No op knows of masks: such an array is refused."""
    masked = np.ma.masked_greater(np.float32([0.126, -0.132]), 0)
    with pytest.raises(DTypeError, match="masked array"):
        Tensor.from_numpy(masked)


def test_a_matrix() -> None:
    """A subclass of ndarray with rules of its own is taken as the numbers it has."""
    values = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    given = Tensor.from_numpy(values.view(np.matrix))
    expected = ops.powf(Tensor.from_numpy(values), 2.0).numpy()
    np.testing.assert_array_equal(expected, ops.powf(given, 2.0).numpy())
    np.testing.assert_array_equal(values.max(1), ops.max(given, 1).numpy())


def test_elements_at_several_places() -> None:
    """Nothing is assigned to what repeats elements: the last one written would win, whichever."""
    row = Tensor.from_numpy(np.zeros((1, 3), np.float32))
    with pytest.raises(ShapeError, match=r"assign: target has strides \(0, 1\)"):
        ops.assign(row.broadcast_to(2, 3), Tensor.from_numpy(np.ones((2, 3), np.float32)))
    ops.assign(row.broadcast_to(1, 3), Tensor.from_numpy(np.ones(3, np.float32)))
    assert [[1, 1, 1]] == row.numpy().tolist()
