"""What a step gives: the logits of some rows, of which the host reads what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import ops


if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from propolis import Tensor


class Rows:
    """
    Logits on a device, (1, rows, at least the vocabulary), and the likeliest token of each row.

    Made once for each captured step: a replay writes into the same tensors.
    """

    def __init__(self, logits: Tensor, vocabulary: int) -> None:
        """
        Look for the likeliest.

        Args:
            logits: as the network gives them.
            vocabulary: how many of each row are tokens; what is beyond pads the embedding.
        """
        self._logits = logits
        whole = logits.shape[2] <= vocabulary
        known = logits if whole else logits.narrow(2, 0, vocabulary)
        self._best = ops.argmax(known, 2)
        self._peak = ops.max(known, 2)

    def all(self, wanted: Sequence[int]) -> NDArray[np.floating]:
        """(wanted, at least the vocabulary): copies all to the host."""
        return self._logits.numpy()[0, list(wanted)]

    def best(self, wanted: Sequence[int]) -> list[tuple[int, float]]:
        """The likeliest token of each wanted row, and its logit: copies nothing else."""
        tokens, peaks = self._best.numpy()[0], self._peak.numpy()[0]
        return [(int(tokens[row]), float(peaks[row])) for row in wanted]


__all__ = ["Rows"]
