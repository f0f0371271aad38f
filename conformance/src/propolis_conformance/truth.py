"""
What an op's result should be: float64, or exact integers.

Every op of the catalogue has a formula of its own in :mod:`propolis_conformance.families`,
but the K formats' quantisation, whose bits the CPU reference defines.  For ops without
one the reference runs on float64 copies of the inputs: that judges every plugin but the
reference itself, and the report says so.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.tensor import Tensor
from propolis_conformance.blocks import dequantize
from propolis_conformance.families import info_of


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.opspec.spec import OpSpec
    from propolis.tensor import Device
    from propolis_conformance.inputs import Value
    from propolis_conformance.op_info import OpInfo

Array = np.ndarray[Any, Any]

NUMPY: Final = "numpy f64"


@dataclass(frozen=True, slots=True)
class Truth:
    """
    The expected outputs.

    Attributes:
        outputs: one array each: f64, exact integers, or the bits of a block format.
        source: who computed them.
        magnitudes: of each output's terms, None where its op has none.
    """

    outputs: list[Array]
    source: str
    magnitudes: list[Array | None]


class NoTruthError(Exception):
    """Neither a formula nor a reference knows the op."""


def truth(
    spec: OpSpec,
    values: Mapping[str, Value],
    attributes: Mapping[str, Any],
    oracle: Device,
    *,
    fixed: Collection[str] = (),
    exact: bool = True,
) -> Truth:
    """
    The expected outputs of a call.

    Args:
        spec: the op.
        values: its tensors.
        attributes: its other arguments.
        oracle: a CPU that runs the reference's implementations, for ops without a formula.
        fixed: tensors whose dtype is the same whatever the op computes in.
        exact: whether who is judged computes with its inputs as they are.

    Raises:
        NoTruthError: nobody knows.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of empty rows
        info = info_of(spec.name)
        formula = info.formula(values, attributes)
        source = NUMPY
        if formula is None:
            own = info.own_dtype
            source = "cpu_ref" if own else "cpu_ref in f64"
            kept = {n: v for n, v in values.items() if n in fixed or v.dtype.is_block or own}
            formula = _reference(spec, oracle, kept)
        given = {name: _numbers(info, value) for name, value in values.items()}
        args, kwargs = arranged(spec, {**given, **_present(attributes)})
        outputs = _listed(formula(*args, **kwargs))
        magnitudes: list[Array | None] = [None] * len(outputs)
        terms = spec.magnitude if exact else spec.rounded
        if terms is not None and outputs[0].dtype.kind == "f":
            magnitudes = _listed(terms(formula, *args, **kwargs))
    return Truth(outputs, source, magnitudes)


def _numbers(info: OpInfo, value: Value) -> Array:
    """A tensor in f64, integers as they are; blocks as the numbers they stand for."""
    if not value.dtype.is_block:
        return value.wide
    return value.array if info.as_bytes else dequantize(value.array, value.dtype)


def _present(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _listed(result: Any) -> list[Any]:
    results = result if isinstance(result, tuple) else (result,)
    return [None if r is None else np.asarray(r) for r in results]


def _reference(spec: OpSpec, oracle: Device, kept: Mapping[str, Value]) -> Callable[..., Any]:
    """The reference's own answer, as a function of arrays like any formula."""

    def run(*args: Any, **kwargs: Any) -> Any:
        names = list(spec.signature.parameters)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tensors = {
            name: _kept(kept[name], oracle) if name in kept else _tensor(value, oracle)
            for name, value in given.items()
            if isinstance(value, np.ndarray)
        }
        try:
            placed, named = arranged(spec, {**given, **tensors})
            result = spec(*placed, **named)  # type: ignore[operator]
        except Exception as exc:
            msg = f"{spec.name}: no formula, and the reference gave {type(exc).__name__}: {exc}"
            raise NoTruthError(msg) from exc
        results = result if isinstance(result, tuple) else (result,)
        return tuple(_wide(tensor) for tensor in results)

    return run


def _kept(value: Value, oracle: Device) -> Tensor:
    if value.dtype.is_block:
        raw = np.ascontiguousarray(value.array).reshape(-1)
        return Tensor.from_blocks(raw, value.dtype, value.shape, oracle)
    return _tensor(value.array, oracle)


def _tensor(array: Array, oracle: Device) -> Tensor:
    # A copy, for ops that write into it; flat first, as numpy gives empty arrays any strides.
    return Tensor.from_numpy(np.array(array).reshape(-1), oracle).reshape(*array.shape)


def _wide(tensor: Tensor) -> Array:
    array = tensor.numpy()
    return array.astype(np.float64) if tensor.dtype.is_float else array


def arranged(spec: OpSpec, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional (None where there is none) and keyword arguments as the signature wants them."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in spec.signature.parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(given.get(name))
        elif name in given:
            kwargs[name] = given[name]
    return args, kwargs


__all__ = ["NoTruthError", "Truth", "arranged", "truth"]
