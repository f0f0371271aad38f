"""What the suite knows of an op: how its arguments are drawn, and what its result should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_conformance.inputs import Recipe
    from propolis_conformance.inputs import Value

    TruthOfCall = Callable[[Mapping[str, Value], Mapping[str, Any]], Callable[..., Any] | None]

Array = np.ndarray[Any, Any]


class NotValidError(Exception):
    """No case: the op refuses these arguments, or its spec says nothing of their result."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """
    Recipes and truth of an op.

    Attributes:
        truth: the result by definition, a function of the op's parameters with arrays in the
            place of tensors: f64, or exact integers.  It is written to be read, not to be fast,
            and shares no line with an implementation.  None where only the CPU reference knows.
        recipes: how its arguments are drawn; none where nobody wrote them down.
        truth_of_call: gives ``truth`` where that depends on the call: takes the tensors and the
            other arguments, by name.
        as_bytes: whether tensors of block formats are given to ``truth`` as their bytes and
            not as the numbers that they stand for.
        own_dtype: whether the result depends on the dtype that its inputs have, so that the
            reference is not asked with f64 copies of them.
        brief: the numbers of the recipes that a quick run keeps to, where the op is another one
            with one result more; None for all.
    """

    truth: Callable[..., Any] | None = None
    recipes: tuple[Recipe, ...] = ()
    truth_of_call: TruthOfCall | None = None
    as_bytes: bool = False
    own_dtype: bool = False
    brief: tuple[int, ...] | None = None

    def drawn_from(self, *, quick: bool) -> tuple[Recipe, ...]:
        """The recipes of a run."""
        if not quick or self.brief is None:
            return self.recipes
        return tuple(self.recipes[i] for i in self.brief)

    def formula(
        self, values: Mapping[str, Value], attributes: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """The truth for these arguments; None where only the CPU reference knows it."""
        if self.truth_of_call is not None:
            return self.truth_of_call(values, attributes)
        return self.truth
