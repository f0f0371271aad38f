"""
Random cases: sizes, strides, values and attributes together, by Hypothesis.

Hypothesis draws them from a seed and shrinks what fails.  It is imported here alone, when
a full run asks for it.
"""

from __future__ import annotations

import functools
import tempfile
import time
from typing import TYPE_CHECKING
from typing import Any

from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import given
from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import FlakyFailure

from propolis_conformance.cases import Case
from propolis_conformance.cases import sizes_of
from propolis_conformance.checks import CheckFailedError
from propolis_conformance.strides import StridePattern


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.inputs import Recipe

_SMALL, _WIDE = st.integers(1, 7), st.sampled_from([16, 17, 31, 32, 33, 64, 65, 129])
_QUIETLY = settings(
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    print_blob=False,
    report_multiple_bugs=False,
)


def search(
    recipes: tuple[Recipe, ...],
    seed: int,
    examples: int,
    seconds: float,
    attempt: Callable[[Case], object],
) -> tuple[Case, CheckFailedError] | None:
    """
    Look for a case that fails.

    Args:
        recipes: the op's.
        seed: of all.
        examples: how many cases to draw.
        seconds: when to stop drawing, and to be content with what was shrunk so far.
        attempt: runs a case; raises CheckFailedError.

    Returns:
        The smallest failing case that was found, or None.
    """
    until = time.monotonic() + seconds
    found: list[tuple[Case, CheckFailedError]] = []

    @seeded(seed)
    @settings(_QUIETLY, max_examples=examples)
    @given(_cases(recipes))
    def run(case: Case) -> None:
        if time.monotonic() > until:
            return
        try:
            attempt(case)
        except CheckFailedError as failure:
            if found and found[0][1].check != failure.check:
                return
            found.append((case, failure))
            raise

    with tempfile.TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)  # it keeps notes, and nobody asked for them here
        try:
            run()
        except (CheckFailedError, FlakyFailure):
            # The smallest is tried last; where time ran out or failures come and go, the
            # last that failed is as good.
            return found[-1]
    return found[-1] if found else None


@st.composite
def _cases(draw: Any, recipes: tuple[Recipe, ...]) -> Case:
    recipe = draw(st.sampled_from([r for r in recipes if not r.brief]))
    attributes = draw(st.sampled_from(recipe.attributes))
    usual = sizes_of(recipe)
    # What attributes rely on is mostly kept: a kernel that fits, a group that divides.
    sizes = {
        name: draw(st.just(size) | _SMALL if name in recipe.sizes else _SMALL)
        for name, size in usual.items()
    }
    if draw(st.booleans()):  # one alone, as their product is what takes time
        sizes[draw(st.sampled_from(sorted(sizes)))] = draw(_WIDE)
    strides = {
        name: pattern
        for name, tensor in recipe.tensors.items()
        if attributes.get(name, ...) is not None
        and (pattern := draw(_patterns(len(tensor.dims.split())))) != StridePattern()
    }
    kinds = ["normal", "large"]
    kinds += [
        kind
        for kind, wanted in (
            ("denormal", recipe.denormal),
            ("ties", recipe.ties),
            ("extreme", recipe.extreme),
            ("wide", recipe.extreme),
            ("special", recipe.special),
        )
        if wanted
    ]
    values = draw(st.sampled_from(kinds))
    return Case(
        recipe, sizes, attributes, values=values, seed=draw(st.integers(0, 999)), strides=strides
    )


@functools.cache
def _patterns(rank: int) -> Any:
    """Any order, steps, gaps and offset; half the time none of them."""
    dense = (0,) * rank
    return st.one_of(
        st.just(StridePattern()),
        st.builds(
            StridePattern,
            order=st.permutations(range(rank)).map(tuple),
            steps=st.tuples(*(st.integers(1, 3) for _ in dense)),
            gaps=st.tuples(*(st.integers(0, 2) for _ in dense)),
            repeat=st.booleans() if rank else st.just(False),
            offset=st.integers(0, 5),
        ),
    )
