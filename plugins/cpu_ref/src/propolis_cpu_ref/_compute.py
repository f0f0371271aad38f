"""What the op files share: the dtype arithmetic happens in, and IEEE semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import TypeVar

import numpy as np


if TYPE_CHECKING:
    from propolis import Tensor


F = TypeVar("F", bound=Callable[..., None])


def ieee(function: F) -> F:
    """
    Decorator: overflow to inf, NaN and division by zero are results, not warnings.

    Numpy's own state is left alone: it belongs to the program we run in.
    """
    decorated: F = np.errstate(all="ignore")(function)
    return decorated


def wide(tensor: Tensor) -> np.ndarray:
    """The elements in the dtype they are computed in: f64 as f64, every other float as f32."""
    array = tensor.array
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32)


def store(out: Tensor, values: np.ndarray) -> None:
    """Write ``values`` to ``out``, rounding to its dtype."""
    target = out.array
    if target is not values:
        np.copyto(target, values, casting="unsafe")


def scratch(out: Tensor) -> np.ndarray:
    """Memory of ``out``'s shape to compute in: ``out`` itself where its dtype is wide enough."""
    array = out.array
    if array.dtype in (np.float32, np.float64):
        return array
    return np.empty(array.shape, np.float32)


def unit_stride(values: np.ndarray) -> np.ndarray:
    """``values``, or a copy where neighbours along the last dimension are apart."""
    if values.strides[-1] == values.itemsize:
        return values
    return np.ascontiguousarray(values)
