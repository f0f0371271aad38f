"""The smallest case that still fails: simpler ones are tried as long as one of them does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis_conformance.cases import Case

F = TypeVar("F")


def shrink(
    case: Case, failure: F, fails: Callable[[Case], F | None], seconds: float
) -> tuple[Case, F]:
    """
    A case that fails as ``case`` does, and its failure.

    Args:
        case: one that fails.
        failure: in what way.
        fails: the failure of a case, None where it fails otherwise or not at all.
        seconds: when to be content with what was found.
    """
    until = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in simpler(case):
            if time.monotonic() > until:
                return case, failure
            found = fails(smaller)
            if found is not None:
                case, failure, progress = smaller, found, True
                break
    return case, failure


def simpler(case: Case) -> Iterator[Case]:
    """Cases that differ in one respect, those that promise most first."""
    ones = dict.fromkeys(case.sizes, 1)
    if case.sizes != ones:
        yield replace(case, sizes=ones)
    if case.strides:
        yield replace(case, strides={})
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")
    for name in case.strides:
        yield replace(case, strides={n: s for n, s in case.strides.items() if n != name})
    if case.values != "normal":
        yield replace(case, values="normal")
    if case.attributes != case.recipe.attributes[0]:
        yield replace(case, attributes=case.recipe.attributes[0])
    for name, size in case.sizes.items():
        for less in dict.fromkeys((1, size // 2, size - 1)):
            if 0 < less < size:
                yield replace(case, sizes={**case.sizes, name: less})
