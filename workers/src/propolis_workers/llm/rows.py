"""What a step gives: the logits of some rows, of which the host reads what it needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from propolis import dtypes
from propolis import ops
from propolis.later import numpy_later


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis import Tensor

    Logits = NDArray[np.floating]


class Rows:
    """
    Logits on a device, (1, rows, at least the vocabulary), and the likeliest token of each row.

    Made once for each captured step: a replay writes into the same tensors.

    Attributes:
        at: (1, rows), i64: the likeliest tokens, where they are looked for.
    """

    def __init__(self, logits: Tensor, vocabulary: int | None = None) -> None:
        """
        Look for the likeliest.

        Args:
            logits: as the network gives them.
            vocabulary: how many of each row are tokens; what is beyond pads the embedding.  None
                where nobody will ask for the likeliest: then they are not looked for.
        """
        self._logits = logits
        if vocabulary is None:
            return
        whole = logits.shape[2] <= vocabulary
        self._known = known = logits if whole else logits.narrow(2, 0, vocabulary)
        # One tensor, as the host waits for each that it reads; f32 counts tokens to 2**24.
        self._likeliest = found = logits.device.empty((2, *known.shape[1:2]), dtypes.f32)
        # A NaN is larger than any number: where there is one, it is what is found.
        self.at = at = ops.argmax(known, 2)
        ops.cast.into(found.narrow(0, 0, 1), at, dtypes.f32)
        ops.gather.into(found.narrow(0, 1, 1).unsqueeze(2), known, at.unsqueeze(2), 2)

    def all(self, wanted: Sequence[int]) -> NDArray[np.floating]:
        """(wanted, at least the vocabulary): copies all to the host."""
        return self._logits.numpy()[0, list(wanted)]

    def top(self, wanted: Sequence[int], count: int) -> list[tuple[Logits, NDArray[np.int64]]]:
        """Of each wanted row the likeliest tokens' logits, likeliest first, and their ids."""
        count = min(count, self._known.shape[2])
        logits, ids = (found.numpy()[0] for found in ops.topk(self._known, count, 2))
        peaks = self._likeliest.numpy()[1]
        # A NaN anywhere makes the peak one, but need not be among the likeliest.
        logits = np.where(np.isnan(peaks)[:, None], np.float32(math.nan), logits)
        return [(logits[row], ids[row]) for row in wanted]

    def best(self, wanted: Sequence[int]) -> list[tuple[int, float]]:
        """The likeliest token of each wanted row, and its logit: copies nothing else."""
        return _pairs(self._likeliest.numpy(), wanted)

    def best_later(self, wanted: Sequence[int]) -> Callable[[], list[tuple[int, float]]] | None:
        """
        The same, read later: what gives it waits for the steps until now, and for no further ones.

        None where the device has no queue, so that nothing is gained.
        """
        found = numpy_later(self._likeliest)
        return None if found is None else lambda: _pairs(found(), wanted)


def _pairs(likeliest: Logits, wanted: Sequence[int]) -> list[tuple[int, float]]:
    tokens, peaks = likeliest
    return [(int(tokens[row]), float(peaks[row])) for row in wanted]


__all__ = ["Rows"]
