"""
What ops should give, by definition: plain numpy in f64, or exact integers.

No formula here shares a line with an implementation: they are written to be read, not to
be fast, and are what the CPU reference itself is judged by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_conformance.truths import drawn
from propolis_conformance.truths import elementwise
from propolis_conformance.truths import images
from propolis_conformance.truths import indices
from propolis_conformance.truths import products
from propolis_conformance.truths import rows


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    **elementwise.FORMULAS,
    **rows.FORMULAS,
    **products.FORMULAS,
    **images.FORMULAS,
    **indices.FORMULAS,
    **drawn.FORMULAS,
}

__all__ = ["FORMULAS"]
