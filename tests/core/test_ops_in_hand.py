"""Ops as whoever writes code meets them: what they show, and what they say of other runtimes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from propolis import Tensor
from propolis import ops
from propolis.config import Config
from propolis.errors import ArgumentTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.runtime import Runtime


def test_tensors_of_two_runtimes():
    """Two devices of one id are told apart, and an id does not help."""
    one, other = (
        Tensor.from_numpy(np.float32([1]), Runtime.start(Config(plugins=["cpu_ref"])).cpu)
        for _ in range(2)
    )
    with pytest.raises(OpError, match=r"several runtimes \(a on cpu, b on cpu\): .*to\(x.device"):
        ops.add(one, other)
    assert ops.add(one, other.to(one.device)).numpy() == 2


def test_signatures_are_what_a_call_takes_and_gives():
    """Editors, help and inspect show them."""
    shown = "(x: 'Tensor', /, dims: 'Dims' = None, *, keepdim: 'bool' = False) -> 'Tensor'"
    assert str(inspect.signature(ops.sum)) == shown
    assert inspect.signature(ops.topk).return_annotation == "tuple[Tensor, Tensor]"
    assert inspect.signature(ops.fill).return_annotation == "Tensor"
    assert repr(ops.sum) == f"<op sum{shown}>"


class Foreign:
    """Another library's array, which numpy may not read."""

    def __dlpack__(self, **_):
        """What from_dlpack asks for."""

    def __dlpack_device__(self):
        """On a CPU."""
        return 1, 0


@pytest.mark.parametrize(("given", "how"), [(np.ones(2), "from_numpy"), (Foreign(), "from_dlpack")])
def test_what_is_no_tensor(given, how):
    """The error names what makes one of it."""
    with pytest.raises(OpError, match=rf"silu: x is a \w+, not a Tensor: Tensor\.{how} makes one"):
        ops.silu(given)


def test_settings_that_are_none():
    """A dictionary is no Config, and what gives one is named."""
    with pytest.raises(ArgumentTypeError, match="config is a dict; supported: a Config"):
        Runtime.start({"device": "cpu"})


def test_a_dimension_beyond_those_of_the_result():
    """The error says that it counts the dimensions that there would be."""
    x = Tensor.from_numpy(np.ones((2, 2)))
    with pytest.raises(ShapeError, match=r"unsqueeze to: dimension 9 does not exist .* of rank 3"):
        x.unsqueeze(9)
