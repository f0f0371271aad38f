"""What a step gives: the logits of some rows, of which the host reads what it needs."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import OutOfMemoryError
from propolis.later import numpy_later


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis.dtypes import DType

    Logits = NDArray[np.floating]


class Likely(NamedTuple):
    """
    The likeliest tokens of a row.

    Attributes:
        logits: of these, likeliest first.
        ids: which they are.
        mass: how much all tokens weigh at a temperature, where the likeliest weighs 1; None where
            these are all, or it does not matter.
        row: gives the logits of all.
    """

    logits: Logits
    ids: NDArray[np.int64]
    mass: float | None
    row: Callable[[], Logits]


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

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._known.shape[1]

    @property
    def dtype(self) -> DType:
        """Of the logits."""
        return self._known.dtype

    def all(self, wanted: Sequence[int]) -> NDArray[np.floating]:
        """(wanted, at least the vocabulary): copies these to the host; all, where they are many."""
        if 4 * len(wanted) < self._logits.shape[1]:
            return np.concatenate([self._logits.narrow(1, row, 1).numpy()[0] for row in wanted])
        return self._logits.numpy()[0, list(wanted)]

    def top(self, wanted: Sequence[int], count: int, temperatures: Sequence[float]) -> list[Likely]:
        """
        Of each wanted row the likeliest tokens, no more than there are.

        Args:
            wanted: which rows.
            count: how many tokens of each.
            temperatures: at which all tokens of each are weighed; 0 where they need not be.
        """
        count = min(count, self._known.shape[2])
        logits, ids = (found.numpy()[0] for found in ops.topk(self._known, count, 2))
        peaks = self._likeliest.numpy()[1]
        # A NaN anywhere makes the peak one, but need not be among the likeliest.
        logits = np.where(np.isnan(peaks)[:, None], np.float32(math.nan), logits)
        weighed = count < self._known.shape[2] and any(temperatures)
        masses = self._masses(dict(zip(wanted, temperatures, strict=True))) if weighed else None
        return [
            Likely(
                logits[row],
                ids[row],
                float(masses[row]) if masses is not None and temperature else None,
                partial(self._row, row),
            )
            for row, temperature in zip(wanted, temperatures, strict=True)
        ]

    def scores(
        self, wanted: Sequence[int], tokens: Sequence[int], top: int
    ) -> tuple[Logits, Logits, NDArray[np.int64]]:
        """
        Natural logarithms of probabilities, which the device computes in f32.

        Args:
            wanted: rows, neighbours.
            tokens: one of each.
            top: how many of the likeliest are told beside it.

        Returns:
            Those of the tokens, (rows,); those of the likeliest, (rows, top), and which they are.
        """
        known = self._known.narrow(1, wanted[0], len(wanted))
        if known.dtype is not dtypes.f32:
            known = ops.cast(known, dtypes.f32)
        likely = ops.log_softmax(known, 2)
        ids = np.asarray(tokens, np.int64).reshape(1, -1, 1)
        own = ops.gather(likely, Tensor.from_numpy(ids, known.device), 2).numpy()[0, :, 0]
        top = min(top, known.shape[2])
        if not top:
            return own, np.empty((len(own), 0), np.float32), np.empty((len(own), 0), np.int64)
        values, best = (found.numpy()[0] for found in ops.topk(likely, top, 2))
        return own, values, best

    def _masses(self, temperatures: dict[int, float]) -> NDArray[np.floating]:
        """Of each row the weights of all tokens, of which the likeliest has 1."""
        known = self._known
        each = np.ones((1, known.shape[1], 1), np.float32)
        for row, temperature in temperatures.items():
            each[0, row] = temperature or 1.0
        try:
            if known.dtype is not dtypes.f32:
                known = ops.cast(known, dtypes.f32)
            if (each != 1).any():
                known = ops.div(known, Tensor.from_numpy(each, known.device))
            shares = ops.gather(ops.softmax(known, 2), self.at.unsqueeze(2), 2).numpy()
        except OutOfMemoryError:  # infinity is no mass: whoever draws looks at all tokens
            return np.full(known.shape[1], np.inf)
        with np.errstate(divide="ignore"):
            found: Logits = 1.0 / shares[0, :, 0].astype(np.float64)
        return found

    def _row(self, row: int) -> Logits:
        (logits,) = self.all([row])
        return np.asarray(logits)

    def best(self, wanted: Sequence[int]) -> list[tuple[int, float]]:
        """
        Of each wanted row the likeliest token, or what :meth:`draw` drew; the likeliest's logit.

        Copies nothing else.
        """
        return _pairs(self._likeliest.numpy(), wanted)

    def draw(self, keys: Tensor, temperature: Tensor, **cuts: Any) -> Tensor:
        """
        Draw a token of each row by the op ``draw``: until a replay it is what :meth:`best` gives.

        Args:
            keys: (rows,), i64.
            temperature: (rows,), f32.
            cuts: as the op has them.

        Returns:
            (1, rows), i64.
        """
        drawn = ops.draw(self._known.squeeze(0), keys, temperature, **cuts).unsqueeze(0)
        ops.cast.into(self._likeliest.narrow(0, 0, 1), drawn, dtypes.f32)
        return drawn

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
