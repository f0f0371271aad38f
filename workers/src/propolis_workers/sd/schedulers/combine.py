"""What steps do to tensors: linear combinations, and bounds on the predicted clean sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from propolis import ops


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.schedulers.settings import Settings


def combine(*terms: tuple[float, Tensor]) -> Tensor:
    """
    The sum of factor times tensor, all of one shape and dtype.

    Terms whose factor is 0 are left out, whatever their tensors hold.
    """
    kept = [(factor, tensor) for factor, tensor in terms if factor != 0.0]
    if not kept:
        like = terms[0][1]
        return ops.full(like.shape, 0.0, like.dtype, like.device)
    factor, tensor = kept[0]
    total = ops.affine(tensor, factor, 0.0)
    for factor, tensor in kept[1:]:
        scaled = tensor if factor == 1.0 else ops.affine(tensor, factor, 0.0)
        ops.add.into(total, total, scaled)
    return total


class Bounds:
    """Keeps a predicted clean sample where images are."""

    def __init__(self, settings: Settings) -> None:
        self._range = None
        if getattr(settings, "clip_sample", False):
            self._range = getattr(settings, "clip_sample_range", 1.0)
        self._dynamic = getattr(settings, "thresholding", False)
        self._ratio = getattr(settings, "dynamic_thresholding_ratio", 1.0)
        self._largest = getattr(settings, "sample_max_value", 1.0)

    def __bool__(self) -> bool:
        return self._dynamic or self._range is not None

    def __call__(self, clean: Tensor) -> Tensor:
        """(b, ...) -> the same."""
        if self._dynamic:
            return self._thresholded(clean)
        if self._range is not None:
            return ops.clamp(clean, -self._range, self._range)
        return clean

    def _thresholded(self, clean: Tensor) -> Tensor:
        """
        Dynamic thresholding (Saharia et al. 2022, section 2.3), each image by itself.

        The bound is a quantile of the absolute values, interpolated between two of them.
        """
        rows = clean.reshape(clean.shape[0], -1)
        ordered = ops.sort(ops.abs(rows))
        last = ordered.shape[1] - 1
        place = self._ratio * last
        low = min(math.floor(place), last)
        high = min(low + 1, last)
        share = place - low
        bound = combine((1 - share, ordered.narrow(1, low, 1)), (share, ordered.narrow(1, high, 1)))
        bound = ops.clamp(bound, 1.0, self._largest)
        rows = ops.minimum(ops.maximum(rows, ops.neg(bound)), bound)
        return ops.div(rows, bound).reshape(*clean.shape)
