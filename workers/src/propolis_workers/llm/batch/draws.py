"""What the next tokens of a batch are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import NamedTuple

from propolis.errors import OutOfMemoryError
from propolis_workers.llm.answer import draw_together


if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from propolis_workers.llm.answer import Answer
    from propolis_workers.llm.drawing import Odds
    from propolis_workers.llm.rows import Likely
    from propolis_workers.llm.rows import Rows


class Draw(NamedTuple):
    """
    What a token is drawn from: the one that a device found, the likeliest ones, or all.

    Attributes:
        logits: (at least the vocabulary,); None where not all are needed.
        token: what the device found.
        logit: the likeliest token's.
        is_drawn: whether it was drawn, by the answer's key; it is the likeliest where not.
        likely: the likeliest tokens, where others are hardly ever drawn.
        drawn: one of them, where it has been drawn.
    """

    logits: NDArray[np.floating] | None
    token: int = -1
    logit: float = 0.0
    is_drawn: bool = False
    likely: Likely | None = None
    drawn: int | None = None

    def of(self, answer: Answer) -> int:
        """The next token of an answer."""
        if self.drawn is not None:
            return answer.take_drawn(self.drawn)
        if self.likely is not None:
            return answer.draw_among(self.likely)
        if self.is_drawn:
            return answer.take_drawn(self.token, self.logit)
        if self.logits is None:
            return answer.take(self.token, self.logit)
        return answer.draw(self.logits)


def draws_among(
    answers: Mapping[int, Answer], rows: Rows, together: Collection[int]
) -> dict[int, Draw]:
    """
    Let the device find the likeliest tokens, and draw among them.

    Args:
        answers: whose :attr:`Answer.among` is not 0, by their rows.
        rows: what a step gave.
        together: which rows are drawn at once, and not when they are asked for.

    Returns:
        Of each row; of none where the device has no memory for it.
    """
    if not answers:
        return {}
    count = max(answer.among for answer in answers.values())
    weighs = [answer.weighs for answer in answers.values()]
    try:
        likely = dict(zip(answers, rows.top(list(answers), count, weighs), strict=True))
    except OutOfMemoryError:
        return {}
    at_once = [row for row in answers if row in together and not answers[row].greedy]
    tokens = draw_together([answers[row] for row in at_once], [likely[row] for row in at_once])
    drawn = dict(zip(at_once, tokens, strict=True))
    return {row: Draw(None, likely=likely[row], drawn=drawn.get(row)) for row in answers}


def odds_of(answers: Mapping[int, Answer]) -> dict[int, Odds]:
    """By what a device draws the tokens of answers, by their rows."""
    return {row: answer.chance().odds for row, answer in answers.items()}


def keys_of(answers: Mapping[int, Answer], further: int) -> dict[int, int]:
    """Of the chances of the tokens that are so many after the next ones."""
    return {row: answer.chance().key_of(further) for row, answer in answers.items()}


__all__ = ["Draw", "draws_among", "keys_of", "odds_of"]
