"""How a UNet is told the step it is at, and sizes of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops


if TYPE_CHECKING:
    from propolis_workers.sd.layers import Weights

_LONGEST = 10_000.0  # the slowest sinusoid's period over 2 pi (Vaswani et al. 2017)


class Sinusoids:
    """Sines and cosines of numbers, at frequencies that fall geometrically."""

    def __init__(self, width: int, weights: Weights, *, flip: bool, shift: float) -> None:
        """
        Compute the frequencies.

        Args:
            width: elements of an embedding, even.
            weights: says device and dtype.
            flip: whether cosines come before sines.
            shift: of the frequencies' denominator.
        """
        half = width // 2
        # In f32, step by step, as models were trained with them.
        exponents = np.arange(half, dtype=np.float32) * np.float32(-np.log(_LONGEST))
        table = np.exp(exponents / np.float32(half - shift))
        self.frequencies = Tensor.from_numpy(table.reshape(1, half), weights.device)
        self.dtype = weights.dtype
        self.flip = flip

    def __call__(self, numbers: Tensor) -> Tensor:
        """(n,) f32 -> (n, width)."""
        if numbers.dtype is not dtypes.f32:
            numbers = ops.cast(numbers, dtypes.f32)
        angles = ops.mul(numbers.unsqueeze(1), self.frequencies)
        parts = [ops.sin(angles), ops.cos(angles)]
        y = ops.cat(parts[::-1] if self.flip else parts, 1)
        return y if self.dtype is dtypes.f32 else ops.cast(y, self.dtype)


class TimeEmbedding:
    """Two linear layers with SiLU between; a condition may be added to the input."""

    def __init__(self, weights: Weights, width_in: int, width: int, condition: int = 0) -> None:
        """
        Read the weights.

        Args:
            weights: where from.
            width_in: elements of the input.
            width: elements of the output.
            condition: elements of the condition; 0 for none.
        """
        self.linear1 = weights.linear("linear_1", width_in, width)
        self.linear2 = weights.linear("linear_2", width, width)
        self.condition = None
        if condition:
            self.condition = weights.linear("cond_proj", condition, width_in, bias=False)

    def __call__(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """(b, in) -> (b, width)."""
        if self.condition is not None and condition is not None:
            if condition.dtype is not x.dtype:
                condition = ops.cast(condition, x.dtype)
            x = ops.add(x, self.condition(condition))
        y = self.linear1(x)
        return self.linear2(ops.silu.into(y, y))


__all__ = ["Sinusoids", "TimeEmbedding"]
