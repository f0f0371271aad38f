"""Copies, constants and sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.dtypes import PLAIN
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.layout import normalize_dim
from propolis.opspec.infer import expect
from propolis.opspec.infer import same_dtype
from propolis.opspec.spec import EXACT
from propolis.opspec.spec import Meta
from propolis.opspec.spec import beside_ops
from propolis.opspec.spec import op
from propolis.opspec.tolerance import ROUNDED
from propolis.tensor import Tensor
from propolis.tensor import opened


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis.layout import Shape
    from propolis.opspec.tolerance import Array
    from propolis.tensor import Device

_EXACT = dict.fromkeys(dtypes.ALL, EXACT)


@op({"x": frozenset(dtypes.ALL)}, elementwise=True, tolerance=_EXACT)
def copy(x: Tensor, /) -> Meta:
    """
    A row-major copy.

    Args:
        x: any shape and strides, any dtype.

    Returns:
        Shape and dtype of ``x``, contiguous, in fresh memory.
    """
    return x.shape, x.dtype


@op({"target": frozenset(dtypes.ALL)}, mutates=True, tolerance=_EXACT)
def assign(target: Tensor, source: Tensor, /) -> None:
    """
    Overwrite every element of ``target``, in place.

    With views of both this is every strided copy: of a slice, a column, a window of
    a larger matrix (copy2d).

    Args:
        target: any shape, any strides that reach no element twice, any dtype.
        source: a shape that broadcasts to ``target``'s, same dtype; of block formats whole
            blocks are copied.

    Raises:
        DTypeError: the dtypes differ.
        ShapeError: the source does not broadcast to the target, or the target has elements
            several times, as what was broadcast has.
    """
    same_dtype("assign", target=target, source=source)
    if _overlaps(target):
        msg = (
            f"assign: target has strides {target.strides}, so an element may be at several places: "
            f"assign to what was broadcast, or to a .contiguous() copy"
        )
        raise ShapeError(msg)
    if source.shape != target.shape:
        source.layout.broadcast_to(target.shape)


_TOLD = 1 << 16  # elements that are looked at one by one; of more it is assumed


def _overlaps(x: Tensor) -> bool:
    """Whether an element of the storage is at several places of a tensor."""
    dims = [(s, n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1 and x.numel]
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    if not all(stride for stride, _ in dims) or x.numel > _TOLD:
        return True
    # Each may still be there once, as of strides (2, 3) and shape (3, 2).
    offsets = sum(np.ix_(*(np.arange(size) * stride for stride, size in dims)))
    return np.unique(offsets).size < x.numel


@op({"target": PLAIN}, mutates=True, tolerance=_EXACT)
def fill(target: Tensor, /, value: float) -> None:
    """
    Set every element of ``target`` to one value, in place.

    Args:
        target: any shape, any strides.
        value: rounded to the dtype; for integers truncated and saturated, NaN is 0.
    """


def _steps(f: Callable[..., Any], target: Array, start: float = 0, step: float = 1) -> Array:
    """The start, and how far each element is from it."""
    return np.asarray(f(target, abs(start), abs(step)))


@op({"target": PLAIN}, mutates=True, tolerance=ROUNDED, magnitude=_steps)
def arange(target: Tensor, /, start: float = 0, step: float = 1) -> None:
    """
    ``target[i] = start + i * step``, in place, in row-major order.

    Args:
        target: any shape, any strides; its size says how many elements there are.
        start: the first element; whole for integers.
        step: the distance of neighbours; whole for integers, which wrap around.

    Raises:
        OpError: start or step is not whole and the dtype is an integer.
    """
    if target.dtype.is_integer and not (float(start).is_integer() and float(step).is_integer()):
        msg = f"arange: start {start} and step {step} must be whole numbers for {target.dtype}"
        raise OpError(msg)


@op(
    {"cache": frozenset(dtypes.ALL), "positions": {dtypes.i32, dtypes.i64}},
    mutates=True,
    tolerance=_EXACT,
)
def kv_append(cache: Tensor, x: Tensor, positions: Tensor, /) -> None:
    """
    Write the new keys or values of each sequence into its cache, in place.

    ``cache[b, positions[b, t]] = x[b, t]``.  Positions are data, not shape, so that
    a captured decode step can be replayed at any position.

    Args:
        cache: (batch, capacity, heads, head_dim), any strides, any dtype.
        x: (batch, tokens, heads, head_dim), same dtype: what a cache in a block format is given
            ``quantize`` makes.
        positions: (batch, tokens), i32 or i64, each in [0, capacity).

    Raises:
        DTypeError: cache and x differ in dtype.
        ShapeError: the shapes do not fit together.
        OpError: a position is outside the cache (on the CPU: a GPU does not look).
    """
    same_dtype("kv_append", cache=cache, x=x)
    fits = (
        len(cache.shape) == len(x.shape) == 4
        and cache.shape[0] == x.shape[0]
        and cache.shape[2:] == x.shape[2:]
        and positions.shape == x.shape[:2]
    )
    expect(
        "kv_append",
        fits,
        "cache is (batch, capacity, heads, dim), x (batch, tokens, heads, dim), "
        "positions (batch, tokens)",
        cache=cache,
        x=x,
        positions=positions,
    )


@beside_ops
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """
    Tensors joined along one dimension: one ``assign`` for each.

    Args:
        tensors: at least one; equal dtypes, and equal shapes but for ``dim``.
        dim: the dimension; negative counts from the end.

    Raises:
        ShapeError: there are none, or their shapes differ elsewhere.
        OpError: one is no tensor.
        DTypeError: their dtypes differ.
    """
    given: object = tensors  # a tensor alone, or a number, all the same
    tensors = tuple(tensors) if isinstance(given, Iterable) else ()
    if not tensors:
        msg = "cat: give at least one tensor, as a sequence of them"
        raise ShapeError(msg)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            msg = f"cat: one of tensors is a {type(tensor).__name__}: Tensor.from_numpy makes one"
            raise OpError(msg)
    first = tensors[0]
    dim = normalize_dim("cat", dim, len(first.shape))
    for tensor in tensors:
        same_dtype("cat", first=first, other=tensor)
        rest = [t.shape[:dim] + t.shape[dim + 1 :] for t in (first, tensor)]
        fits = len(tensor.shape) == len(first.shape) and rest[0] == rest[1]
        expect("cat", fits, f"shapes agree but for dimension {dim}", first=first, other=tensor)
    size = sum(tensor.shape[dim] for tensor in tensors)
    shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
    out = first.device.empty(shape, first.dtype)
    start = 0
    for tensor in tensors:
        assign(out.narrow(dim, start, tensor.shape[dim]), tensor)
        start += tensor.shape[dim]
    return out


@beside_ops
def full(shape: Shape, value: float, dtype: DType, device: Device | str | None = None) -> Tensor:
    """
    A new tensor with every element set to ``value`` (op ``fill``).

    Args:
        shape: sizes.
        value: of each element, rounded once to ``dtype``.
        dtype: a plain one.
        device: or an id of the default runtime's; its CPU when None.

    Raises:
        DTypeError: there is no such plain dtype.
    """
    if dtype not in PLAIN:
        msg = f"full: dtype {dtype!r}; supported: plain dtypes, as dtypes.f32"
        raise DTypeError(msg)
    return fill(opened(device).empty(shape, dtype), value)
