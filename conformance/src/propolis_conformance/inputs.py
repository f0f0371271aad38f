"""
Recipes: how to draw valid arguments of an op, as data.

A recipe names each tensor's dimensions by letters, as einsum does: equal letters are
equal sizes.  Sizes, layouts and values are chosen elsewhere, so one recipe serves
every variant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import ml_dtypes
import numpy as np

from propolis import dtypes
from propolis_conformance.blocks import random_blocks
from propolis_conformance.compare import LARGEST


if TYPE_CHECKING:
    from collections.abc import Iterable

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.opspec.spec import OpSpec

Sizes = Mapping[str, int]
AttributeSets = tuple[Mapping[str, Any], ...]

LARGE = {"f64": 1e100, "f32": 1e15, "bf16": 1e15, "f16": 100.0, "f8e4m3": 16.0, "f8e5m2": 100.0}

# Domains that are not numbers to compute with but places.
INDICES = frozenset({"index", "distinct", "masked", "length", "starts"})


@dataclass(frozen=True, slots=True)
class T:
    """
    One tensor of a recipe.

    Attributes:
        dims: its dimensions: ``"b t h*2 n+1 8"`` is sizes b and t, twice h, one more than
            n, and 8.
        dtype: a name, or of another parameter (``"=x"``), or that of sums of products
            (``"=sum"``); empty for the dispatch key's or, where the op does not dispatch on
            it, the first parameter's.
        domain: ``values``; ``positive``; ``finite``, never NaN or infinite; ``bounded``, NaN but
            never infinite; ``single``, no larger than f32 is tried with, whatever the dtype;
            ``mask``, -inf among values; ``far``, a thousand more than values;
            ``cache``, NaN where ``kv_len`` says that nothing was written yet;
            ``index:v``, in [0, v); ``distinct:v``, and no two in a row equal; ``masked:v``,
            some the largest of their dtype; ``length:v``, in [0, v]; ``starts:v``,
            ascending from 0 to v.
    """

    dims: str
    dtype: str = ""
    domain: str = "values"


@dataclass(frozen=True, slots=True)
class Recipe:
    """
    How to draw arguments of an op.

    Attributes:
        tensors: by parameter name, in signature order.
        attributes: sets of the other arguments, each tried; a tensor's name with
            None leaves that tensor out.
        sizes: of dimensions that need certain sizes.
        deep: sizes for a long sum, which narrow accumulators get wrong.
        large: sizes for a case of many elements, where they are not the usual ones.
        nonempty: dimensions that are never empty.
        overwrites: a mutating op that writes every element of its target.
        special: whether NaN and infinities mean something in its inputs.
        denormal: whether numbers below the normal range mean something in its inputs.
        ties: an order or a choice, which equal elements put to the test.
        extreme: element by element, so that the largest finite numbers have one answer, and
            so have numbers of very different sizes together.
        brief: few cases of it say all; it is not searched.
    """

    tensors: Mapping[str, T]
    attributes: AttributeSets = ({},)
    sizes: Sizes = field(default_factory=dict)
    deep: Sizes = field(default_factory=dict)
    large: Sizes = field(default_factory=dict)
    nonempty: str = ""
    overwrites: bool = False
    special: bool = True
    denormal: bool = True
    ties: bool = False
    extreme: bool = False
    brief: bool = False

    @property
    def dims(self) -> list[str]:
        """The letters, in order of appearance."""
        names = re.findall("[a-z]", " ".join(t.dims for t in self.tensors.values()))
        return list(dict.fromkeys(names))

    @property
    def fixed(self) -> set[str]:
        """Tensors whose dtype is the same whatever the op computes in."""
        return {n for n, t in self.tensors.items() if t.dtype and t.dtype[0] != "="}


@dataclass(frozen=True, slots=True)
class Value:
    """
    A drawn tensor in host memory.

    Attributes:
        array: the elements; of a block format the bytes, the last dimension counted so.
        dtype: the element type.
        shape: in elements.
    """

    array: np.ndarray
    dtype: DType
    shape: Shape

    @property
    def wide(self) -> np.ndarray:
        """The elements in f64, or exact integers as they are."""
        if not self.dtype.is_float:
            return self.array
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return self.array.astype(np.float64)


_MANY = ("r s t u", "r s t u v", "r s t u v w", "r s t u v w x")
_RANKS = {
    "": {},
    "c": {},
    "r c": {},
    "r s t c": {"r": 2, "t": 2},
    **{f"{dims} c": dict.fromkeys(dims.split(), 2) for dims in _MANY},
}


def at_any_rank(recipe: Recipe, *, least: int = 0) -> tuple[Recipe, ...]:
    """
    A recipe whose tensors have one shape, and the same at other ranks, of few cases.

    Args:
        recipe: of three dimensions.
        least: dimensions that its attributes need.
    """
    return (
        recipe,
        *(
            replace(
                recipe,
                tensors={n: replace(t, dims=dims) for n, t in recipe.tensors.items()},
                attributes=tuple(
                    each
                    for each in recipe.attributes[:4]
                    if -len(dims.split()) <= each.get("dim", 0) < max(len(dims.split()), 1)
                ),
                sizes=sizes,
                deep={},
                brief=True,
            )
            for dims, sizes in _RANKS.items()
            if len(dims.split()) >= least
        ),
    )


def size_of(token: str, sizes: Sizes) -> int:
    """What ``"h*2"``, ``"n*g"``, ``"b+1"`` or ``"8"`` stands for."""
    product, _, more = token.partition("+")
    size = math.prod(int(t) if t.isdigit() else sizes[t] for t in product.split("*"))
    return size + int(more or 0)


def shape_of(tensor: T, sizes: Sizes, block: int = 1) -> Shape:
    """The shape that the letters stand for."""
    shape = [size_of(token, sizes) for token in tensor.dims.split()]
    if block > 1 and shape[-1] % block:
        shape[-1] *= block
    return tuple(shape)


def kinds_of(spec: OpSpec, recipe: Recipe, key: tuple[DType, ...]) -> dict[str, DType]:
    """The dtype of each tensor for a dispatch key."""
    chosen = dict(zip(spec.dtypes, key, strict=True))
    chosen["sum"] = dtypes.i32 if key[0] is dtypes.i8 else key[0]
    kinds: dict[str, DType] = {}
    for name, tensor in recipe.tensors.items():
        if tensor.dtype.startswith("="):
            kinds[name] = chosen[tensor.dtype[1:]]
        elif tensor.dtype:
            kinds[name] = dtypes.parse_dtype(tensor.dtype)
        else:
            kinds[name] = chosen.get(name, key[0])
    return kinds


def scaled(recipe: Recipe, kinds: Mapping[str, DType], sizes: Sizes) -> dict[str, int]:
    """Sizes with the rows of block formats made whole blocks, for all who share the letter."""
    grown = dict(sizes)
    for name, tensor in recipe.tensors.items():
        letter = tensor.dims.split()[-1].partition("*")[0] if tensor.dims else ""
        block = kinds[name].block_size
        if block > 1 and grown.get(letter, 0) % block:
            grown[letter] *= block
    return grown


def draw(
    tensor: T,
    dtype: DType,
    sizes: Sizes,
    values: str,
    rng: np.random.Generator,
) -> Value:
    """Random elements of one tensor."""
    shape = shape_of(tensor, sizes, dtype.block_size)
    domain, _, bound = tensor.domain.partition(":")
    if dtype.is_block:
        return Value(random_blocks(shape, dtype, rng), dtype, shape)
    if domain in INDICES:
        return Value(_indices(domain, shape, size_of(bound, sizes), dtype, rng), dtype, shape)
    if dtype.is_integer:
        return Value(_integers(shape, dtype, values, rng), dtype, shape)
    if domain == "positive" or values == "positive":
        return Value(np.asarray(rng.uniform(0, 1, shape)).astype(dtype.numpy), dtype, shape)
    if domain == "single" and dtype is dtypes.f64:
        return _single(shape, values, rng)
    numbers = _floats(shape, dtype, "normal" if domain == "finite" else values, rng)
    if domain == "bounded":
        numbers = np.where(np.isinf(numbers), np.nan, numbers)
    if domain == "far":
        numbers = numbers + 1000
    if domain == "mask":
        numbers = np.where(rng.uniform(size=shape) < 0.3, -np.inf, numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        return Value(np.asarray(numbers).astype(dtype.numpy), dtype, shape)


def _single(shape: Shape, values: str, rng: np.random.Generator) -> Value:
    """Numbers in f64 of the size of f32's."""
    return Value(_floats(shape, dtypes.f32, values, rng), dtypes.f64, shape)


def _floats(
    shape: Shape, dtype: DType, values: str, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    numbers = np.asarray(rng.normal(0, 1, shape))
    if values == "large":
        return numbers * LARGE[dtype.name]
    if values == "ties":
        return np.asarray(rng.integers(-5, 6, shape) / 2)
    if values == "denormal":
        # Whole multiples of the last place there is, some of them within normal range.
        info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        places = rng.integers(-(3 << info.nmant), 3 << info.nmant, shape)
        return np.asarray(places * float(info.smallest_subnormal))
    if values == "wide":
        return _wide(shape, dtype, rng)
    odd = {
        "special": [np.nan, np.inf, -np.inf, 0.0, -0.0],
        "extreme": [LARGEST[dtype.name], -LARGEST[dtype.name]],
    }.get(values)
    if odd is not None and numbers.size:
        chosen = rng.uniform(size=shape) < 0.2
        numbers = np.where(chosen, rng.choice(np.array(odd), shape), numbers)
        # Each of them once at least, the first ones where there is little room: no draw lacks NaN.
        places = rng.permutation(numbers.size)[: min(len(odd), -(-numbers.size // 2))]
        numbers.flat[places] = odd[: len(places)]
    return numbers


def _wide(shape: Shape, dtype: DType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Half of any size that the dtype has, half about where the exponentials of f32 or f64 end."""
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    least, most = math.log2(info.smallest_subnormal), math.log2(LARGEST[dtype.name])
    numbers = rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(least, most, shape))
    end = 2 * math.log(LARGEST["f64" if dtype is dtypes.f64 else "f32"])
    return np.where(rng.uniform(size=shape) < 0.5, numbers, rng.uniform(-end, end, shape))


def _integers(
    shape: Shape, dtype: DType, values: str, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    info = np.iinfo(dtype.numpy)
    if values == "large":
        return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    if values == "ties":
        return rng.integers(0, 3, shape, dtype.numpy)
    if values == "wide":
        drawn = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        return np.asarray(drawn >> rng.integers(0, info.bits, shape, dtype.numpy))
    if values in ("special", "extreme"):
        corners = np.array([info.min, info.max, 0, 1, max(info.min, -1)], dtype.numpy)
        return np.asarray(rng.choice(corners, shape))
    return rng.integers(max(info.min, -50), 50, shape, dtype.numpy)


def _indices(
    domain: str, shape: Shape, bound: int, dtype: DType, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    if domain == "length":
        return np.asarray(rng.integers(0, bound, shape, endpoint=True)).astype(dtype.numpy)
    if domain == "starts":
        if shape[0] == 1 and bound:
            msg = f"no sequence to hold {bound} rows"
            raise ValueError(msg)
        inner = np.sort(rng.integers(0, bound, max(shape[0] - 2, 0), endpoint=True))
        return np.array([0, *inner, bound] if shape[0] > 1 else [0], dtype.numpy)
    if domain in ("index", "masked"):
        if bound < 1 and 0 not in shape and domain == "index":
            msg = "no index is below 0"
            raise ValueError(msg)
        # Below what stands for "masked", in dtypes as narrow as u8.
        top = min(max(bound, 1), np.iinfo(dtype.numpy).max)
        ids = np.asarray(rng.integers(0, top, shape)).astype(dtype.numpy)
        if domain == "masked":
            absent = rng.uniform(size=shape) < (0.25 if bound else 1)
            ids = np.where(absent, np.iinfo(dtype.numpy).max, ids).astype(dtype.numpy)
        return ids
    # One order for each row, so that no place is written twice.
    count = shape[-1] if shape else 1
    if count > bound:
        msg = f"{count} distinct indices below {bound}"
        raise ValueError(msg)
    rows = [rng.permutation(bound)[:count] for _ in range(int(np.prod(shape[:-1])))]
    return np.asarray(rows).reshape(shape).astype(dtype.numpy)


def forget(drawn: dict[str, Value], names: Iterable[str]) -> None:
    """
    Make NaN of what caches hold beyond ``kv_len``: memory that nobody wrote yet.

    Of blocks all bits are set, which as a scale is NaN too.
    """
    if "kv_len" not in drawn:
        return
    lengths = drawn["kv_len"].array
    for name in names:
        value = drawn[name]
        array, written = value.array.copy(), np.zeros(value.shape[:2], bool)
        if "block_table" in drawn:
            table, page = drawn["block_table"].array, value.shape[1]
            for s, length in enumerate(lengths):
                for j in range(int(length)):
                    written[table[s, j // page], j % page] = True
        else:
            written |= np.arange(value.shape[1]) < lengths[:, None]
        array[~written] = 0xFF if value.dtype.is_block else np.nan
        drawn[name] = replace(value, array=array)
