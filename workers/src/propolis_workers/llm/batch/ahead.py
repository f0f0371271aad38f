"""Steps of many sequences that are queued before the last one's tokens are known."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis_workers.llm.batch.scheduler import Part


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Tensor
    from propolis_workers.llm.batch.scheduler import Sequence
    from propolis_workers.llm.rows import Rows


@dataclass(slots=True)
class Ahead:
    """
    A step that was queued before its tokens were known: of those that the device finds.

    Attributes:
        sequences: whose, one token each.
        at: the row of each; those between are of sequences that have ended.
        positions: of these tokens.
        rows: what it gives.
        found: the next token of each row and the likeliest's logit, once the step is done.
        next: (1, rows), i64: these tokens, on the device.
        keys: by which those were drawn that are not the likeliest, by row.
        tokens: what it appends.
    """

    sequences: list[Sequence]
    at: list[int]
    positions: list[int]
    rows: Rows
    found: Callable[[], list[tuple[int, float]]]
    next: Tensor
    keys: dict[int, int]
    tokens: list[int] = field(default_factory=list)

    def holds(self) -> dict[Part, list[int]]:
        """The rows of those that go on as it was thought; others have ended meanwhile."""
        each = zip(self.sequences, self.at, self.positions, self.tokens, strict=True)
        return {
            Part(own, 1): [row]
            for own, row, position, token in each
            if own.blocks and own.computed == position and own.tokens[position:] == [token]
        }


__all__ = ["Ahead"]
