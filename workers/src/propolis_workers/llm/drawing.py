"""Tokens drawn where the logits are: the host reads nothing but which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import numpy as np

from propolis import Priority
from propolis import Tensor
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis import Device
    from propolis import DType
    from propolis_workers.llm.rows import Rows


class Odds(NamedTuple):
    """
    By what a token is drawn.

    Attributes:
        temperature: of the logits; 0 for the likeliest.
        top_k: so many of the likeliest are candidates; 0 for all.
        top_p: the fewest whose probability reaches it are.
        min_p: those at least so probable, of the likeliest's, are.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class Chance(NamedTuple):
    """
    By what the tokens of one answer are drawn, from the next one on.

    Attributes:
        odds: of each.
        key_of: gives the key of the token that is so many after the answer's next one.
        further: how many this one is after it.
    """

    odds: Odds
    key_of: Callable[[int], int]
    further: int = 0

    @property
    def key(self) -> int:
        """Of the token's chances."""
        return self.key_of(self.further)

    def after(self) -> Chance:
        """Of the token after it."""
        return self._replace(further=self.further + 1)


LIKELIEST = Odds(0.0, 0, 1.0, 0.0)
"""Of those that take the likeliest token, and of rows that are nobody's."""


class Drawing:
    """
    Draws tokens on a device.

    What rows are drawn by is kept there, as it seldom changes.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: tuple[int, bool] | None = None
        self._told: tuple[list[Odds], Tensor, dict[str, Any]] | None = None

    def serves(self, kind: DType) -> bool:
        """
        Whether the device draws by a kernel, of logits of that dtype.

        The CPU reference does as the host does without it, and no faster.
        """
        table = DispatchTable.of(self._device)
        if self._known is None or self._known[0] != table.generation:
            winner = table.trace(ops.draw, ops.draw.key(kind)).winner
            by_kernel = winner is not None and winner.priority > Priority.REFERENCE
            self._known = table.generation, by_kernel
        return self._known[1]

    def queue(self, rows: Rows, odds: Mapping[int, Odds], keys: Mapping[int, int]) -> Tensor | None:
        """
        Queue what draws a token of each row; :meth:`Rows.best` and its like give it from then on.

        Args:
            rows: the logits.
            odds: of each row that has any; of others the likeliest is taken.
            keys: of the chances of these rows.

        Returns:
            (1, rows), i64: the tokens; None where there is no memory.
        """
        each = [odds.get(row, LIKELIEST) for row in range(rows.count)]
        numbers = np.array([keys.get(row, 0) for row in range(rows.count)], np.uint64)
        try:
            if self._told is None or self._told[0] != each:
                self._told = None
                self._told = each, *self._tell(each)
            _, temperature, cuts = self._told
            bits = Tensor.from_numpy(numbers.view(np.int64), self._device)
            return rows.draw(bits, temperature, **cuts)
        except OutOfMemoryError:
            return None

    def _tell(self, each: list[Odds]) -> tuple[Tensor, dict[str, Any]]:
        """Copy to the device what rows are drawn by: temperatures, and cuts that some have."""
        cuts: dict[str, Any] = {}
        drawn = [own for own in each if own.temperature > 0]
        bounds = {own.top_k for own in drawn} or {0}
        if 0 not in bounds:
            cuts["k"] = max(bounds)
        if len(bounds) > 1:
            cuts["top_k"] = self._column([own.top_k for own in each], np.int32)
        if any(own.top_p < 1 for own in drawn):
            cuts["top_p"] = self._column([own.top_p for own in each])
        if any(own.min_p > 0 for own in drawn):
            cuts["min_p"] = self._column([own.min_p for own in each])
        return self._column([own.temperature for own in each]), cuts

    def _column(self, numbers: list[float], kind: type[np.number] = np.float32) -> Tensor:
        return Tensor.from_numpy(np.array(numbers, kind), self._device)


__all__ = ["LIKELIEST", "Chance", "Drawing", "Odds"]
