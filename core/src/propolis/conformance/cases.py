"""Which cases an implementation is judged on: sizes, layouts, values, attributes."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.conformance.inputs import draw
from propolis.conformance.inputs import kinds_of
from propolis.conformance.inputs import scaled


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis.conformance.inputs import Recipe
    from propolis.conformance.inputs import Value
    from propolis.dtypes import DType
    from propolis.ops._spec import OpSpec

LAYOUTS: Final = ("permuted", "repeated", "offset", "step", "gaps")
_ODD = (3, 5, 2, 7)


@dataclass(frozen=True, slots=True)
class Case:
    """
    One call, reproducible from what is written here.

    Attributes:
        recipe: how its arguments are drawn.
        sizes: of each dimension letter.
        attributes: the arguments that are not tensors.
        layout: how inputs lie in memory: ``contiguous``, or one of ``LAYOUTS``, or
            ``aliased`` where inputs of one shape are one tensor.
        values: ``normal``, ``positive``, ``large`` or ``special`` (NaN, infinities).
        seed: of the generator.
    """

    recipe: Recipe
    sizes: Mapping[str, int]
    attributes: Mapping[str, Any]
    layout: str = "contiguous"
    values: str = "normal"
    seed: int = 0

    def __str__(self) -> str:
        shapes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        given = "".join(f" {name}={value!r}" for name, value in self.attributes.items())
        return f"{shapes}{given} layout={self.layout} values={self.values} seed={self.seed}"

    def draw(self, spec: OpSpec, key: tuple[DType, ...]) -> dict[str, Value]:
        """Its tensors, by parameter name."""
        rng = np.random.default_rng(self.seed)
        kinds = kinds_of(spec, self.recipe, key)
        sizes = scaled(self.recipe, kinds, self.sizes)
        drawn: dict[str, Value] = {}
        for name, tensor in self.recipe.tensors.items():
            if self.attributes.get(name, ...) is None:
                continue
            drawn[name] = draw(tensor, kinds[name], sizes, self.values, rng)
        return drawn


def cases(recipes: tuple[Recipe, ...], seed: int, *, quick: bool) -> Iterator[Case]:
    """The cases of an op, those that say most first."""
    for recipe in recipes:
        odd = _sizes(recipe)
        base = Case(recipe, odd, recipe.attributes[0], seed=seed)
        for attributes in recipe.attributes:
            yield replace(base, attributes=attributes)
        yield replace(base, sizes=dict.fromkeys(odd, 1))
        last = next(iter(recipe.tensors.values())).dims.split()[-1].partition("*")[0]
        if last in odd:
            yield replace(base, sizes={**odd, last: 131})
        for name in [n for n in odd if n not in recipe.nonempty]:
            yield replace(base, sizes={**odd, name: 0})
        for layout in LAYOUTS:
            yield replace(base, layout=layout)
        if len(recipe.tensors) > 1:
            yield replace(base, layout="aliased")
        yield replace(base, values="large")
        if recipe.special:
            yield replace(base, values="special")
            yield replace(base, values="special", layout="permuted", seed=seed + 1)
        if recipe.deep:
            yield replace(base, sizes={**odd, **recipe.deep}, values="positive")
        if not quick:
            yield from _random(recipe, seed)


def _sizes(recipe: Recipe) -> dict[str, int]:
    named = {name: _ODD[i % len(_ODD)] for i, name in enumerate(recipe.dims)}
    return {**named, **recipe.sizes}


def _random(recipe: Recipe, seed: int) -> Iterator[Case]:
    """Any sizes, layouts and attributes together."""
    rng = np.random.default_rng(seed)
    for i in range(24):
        sizes = {
            name: recipe.sizes.get(name) or int(rng.choice([1, 2, 3, 4, 8, 16, 17, 33]))
            for name in recipe.dims
        }
        attributes = recipe.attributes[rng.integers(len(recipe.attributes))]
        layout = str(rng.choice(["contiguous", *LAYOUTS]))
        yield Case(recipe, sizes, attributes, layout, "normal", seed + 2 + i)
