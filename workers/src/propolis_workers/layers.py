"""What the models of all workers share: layers that hold weights, and checked reading of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis.wording import near_matches


if TYPE_CHECKING:
    import numpy as np

    from propolis import DType
    from propolis import Tensor
    from propolis_workers.weights import TensorInfo
    from propolis_workers.weights import Weights


class Linear:
    """``x @ weight.T + bias``, with the weight in a float dtype or a block format."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if not self.weight.dtype.is_block:
            return ops.linear(x, self.weight, self.bias)
        y = ops.qmatmul(x, self.weight)
        return y if self.bias is None else ops.add(y, self.bias)


class Embedding:
    """A row of the table for each id."""

    def __init__(self, table: Tensor, dtype: DType = dtypes.f32) -> None:
        self.table = table
        self.dtype = dtype

    def __call__(self, ids: Tensor) -> Tensor:
        """(b, t) -> (b, t, width)."""
        return ops.embedding(ids, self.table, self.dtype)


def read_weight(source: Weights, name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, DType]:
    """
    The bytes of a tensor, which must have that shape, and its dtype.

    Raises:
        ModelError: it is missing, has another shape or is not made of floats.
    """
    dtype = expected(source, name, shape).dtype
    return source.data(name), dtype


def expected(source: Weights, name: str, shape: tuple[int, ...]) -> TensorInfo:
    """As :func:`read_weight`, of a tensor that is not read."""
    info = source.tensors.get(name)
    if info is None:
        near = near_matches(name, source.tensors, most=1)
        hint = f" (the nearest is {near[0]})" if near else ""
        msg = f"tensor {name} is missing{hint}: the file is not a complete model; get it again"
        raise ModelError(msg)
    if info.shape != shape:
        msg = f"tensor {name} has shape {info.shape}, the model's settings say {shape}: the file "
        msg += "is damaged, of two models, or of a kind not supported; get it again"
        raise ModelError(msg)
    if not (info.dtype.is_float or info.dtype.is_block):
        msg = f"tensor {name} is {info.dtype}; weights are floats or in a GGUF block format"
        raise ModelError(msg)
    return info


__all__ = ["Embedding", "Linear", "expected", "read_weight"]
