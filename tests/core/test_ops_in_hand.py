"""Ops as whoever writes code meets them: what they show, and what they say of other runtimes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from propolis import Tensor
from propolis import ops
from propolis.config import Config
from propolis.errors import OpError
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
