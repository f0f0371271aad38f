"""Which cases an implementation is judged on: sizes, layouts, values, attributes."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_conformance.families import info_of
from propolis_conformance.inputs import draw
from propolis_conformance.inputs import forget
from propolis_conformance.inputs import kinds_of
from propolis_conformance.inputs import scaled
from propolis_conformance.strides import NAMES
from propolis_conformance.strides import StridePattern
from propolis_conformance.strides import named


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis.dtypes import DType
    from propolis.opspec.spec import OpSpec
    from propolis_conformance.inputs import Recipe
    from propolis_conformance.inputs import Value

_ODD = (3, 5, 2, 7)
_LARGE: Final = {"r": 5, "s": 37, "c": 131}
"""Of tensors of three dimensions: 24,000 elements, which are several blocks of a kernel."""
_TAIL: Final = 131
"""One row of this is more than a wave of 64 and two of 32, and no multiple of either."""


@dataclass(frozen=True, slots=True)
class Case:
    """
    One call, reproducible from what is written here.

    Attributes:
        recipe: how its arguments are drawn.
        sizes: of each dimension letter.
        attributes: the arguments that are not tensors.
        layout: how inputs lie in memory: ``contiguous``, or one of ``strides.NAMES``, or
            ``aliased`` where inputs of one shape are one tensor.
        values: ``normal``, ``positive``, ``large``, ``ties`` (few numbers,
            halves), ``denormal``, ``extreme`` (the largest finite), ``wide`` (of every
            size, and where exponentials overflow and vanish), or ``special`` (NaN,
            infinities).
        seed: of the generator.
        strides: of the tensors that lie otherwise than ``layout`` says.
    """

    recipe: Recipe
    sizes: Mapping[str, int]
    attributes: Mapping[str, Any]
    layout: str = "contiguous"
    values: str = "normal"
    seed: int = 0
    strides: Mapping[str, StridePattern] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        given = "".join(f" {name}={value!r}" for name, value in self.attributes.items())
        apart = "".join(f" {name}{pattern}" for name, pattern in self.strides.items())
        named = ",".join(n for n in self.recipe.tensors if self.attributes.get(n, ...) is not None)
        how = f"layout={self.layout}{apart} values={self.values} seed={self.seed}"
        return f"{shapes}{given} {how} tensors={named}"

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
        caches = [n for n, t in self.recipe.tensors.items() if t.domain == "cache"]
        forget(drawn, (name for name in caches if name in drawn))
        return drawn

    def pattern(self, name: str, rank: int, *, target: bool) -> StridePattern:
        """
        How one tensor lies.

        Args:
            name: its parameter.
            rank: its dimensions.
            target: whether it is written, so that no element may be reached twice.
        """
        pattern = self.strides.get(name)
        if pattern is None:
            pattern = named(self.layout, rank)
        # What depends on other tensors' rows cannot be the same in all of them, nor can the lengths
        # that say what of a cache is drawn.
        domains = {n: t.domain.partition(":")[0] for n, t in self.recipe.tensors.items()}
        bound = {"cache", "starts", *["length"] * ("cache" in domains.values())}
        if pattern.repeat and (target or domains[name] in bound):
            return replace(pattern, repeat=False)
        return pattern


def cases(recipes: tuple[Recipe, ...], seed: int, *, scale: float = 1.0) -> Iterator[Case]:
    """
    The cases of an op that everybody is judged on, those that say most first.

    Args:
        recipes: the op's.
        seed: of all.
        scale: of the sizes that are large for a reason; below 1 for slow devices.
    """
    for recipe in recipes:
        odd = sizes_of(recipe)
        base = Case(recipe, odd, recipe.attributes[0], seed=seed)
        for attributes in recipe.attributes:
            yield replace(base, attributes=attributes)
        if recipe.brief:
            for layout in ("permuted", "gaps"):
                yield replace(base, layout=layout)
            if recipe.special:
                yield replace(base, values="special", layout="permuted", seed=seed + 1)
            continue
        yield replace(base, sizes=dict.fromkeys(odd, 1))
        last = next(iter(recipe.tensors.values())).dims.split()[-1][0]
        if last in odd:
            yield replace(base, sizes={**odd, last: max(17, int(_TAIL * scale))})
        large = recipe.large or (_LARGE if _LARGE.keys() == odd.keys() else {})
        if large and recipe is recipes[0]:
            yield replace(base, sizes={n: max(odd[n], int(large[n] * scale)) for n in odd})
        for name in [n for n in odd if n not in recipe.nonempty]:
            yield replace(base, sizes={**odd, name: 0})
        for layout in NAMES:
            yield replace(base, layout=layout)
        if len(recipe.tensors) > 1:
            yield replace(base, layout="aliased")
        yield from _values(recipe, base, seed)
        if recipe.extreme and last in odd:  # enough that any two sizes meet
            yield replace(base, sizes={**odd, last: max(17, int(_TAIL * scale))}, values="wide")
        if recipe.deep:
            deep = {n: max(min(size, 8), int(size * scale)) for n, size in recipe.deep.items()}
            yield replace(base, sizes={**odd, **deep}, values="positive")


def _values(recipe: Recipe, base: Case, seed: int) -> Iterator[Case]:
    yield replace(base, values="large")
    if recipe.denormal:
        yield replace(base, values="denormal")
    if recipe.ties:
        for attributes in recipe.attributes:
            yield replace(base, attributes=attributes, values="ties")
    if recipe.extreme:
        yield replace(base, values="extreme")
    if recipe.special:
        for attributes in recipe.attributes:
            yield replace(base, attributes=attributes, values="special")
        yield replace(base, values="special", layout="permuted", seed=seed + 1)


def sizes_of(recipe: Recipe) -> dict[str, int]:
    """A small odd size for each letter."""
    numbered = {name: _ODD[i % len(_ODD)] for i, name in enumerate(recipe.dims)}
    return {**numbered, **recipe.sizes}


def encode(case: Case, op: str) -> dict[str, Any]:
    """A case as JSON: recipe and attributes by their number."""
    return {
        "recipe": info_of(op).recipes.index(case.recipe),
        "attributes": case.recipe.attributes.index(case.attributes),
        "sizes": dict(case.sizes),
        "layout": case.layout,
        "values": case.values,
        "seed": case.seed,
        "strides": {name: asdict(pattern) for name, pattern in case.strides.items()},
    }


def decode(said: Mapping[str, Any], op: str) -> Case:
    """The case that :func:`encode` wrote."""
    recipe = info_of(op).recipes[said["recipe"]]
    strides = {}
    for name, pattern in said["strides"].items():
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in pattern.items()
        }
        strides[name] = StridePattern(**fields)
    attributes = recipe.attributes[said["attributes"]]
    rest = (said["layout"], said["values"], said["seed"], strides)
    return Case(recipe, said["sizes"], attributes, *rest)
