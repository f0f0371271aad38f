"""
What an op's result should be: float64, or exact integers.

Formulas of numpy come first; for other ops the CPU reference runs on float64 copies
of the inputs, which judges every plugin but the reference itself (for which it still
says whether narrow dtypes agree with the wide one).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.conformance.inputs import Value
from propolis.ops import catalogue
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.device import Device
    from propolis.dtypes import DType
    from propolis.ops._spec import OpSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """
    The expected outputs.

    Attributes:
        outputs: one array each: f64, exact integers, or the bits of a block format.
        source: who computed them.
        scale: for sums of products, the sum of their magnitudes, else None.
    """

    outputs: list[Array]
    source: str
    scale: Array | None = None


class NoTruthError(Exception):
    """Neither a formula nor a reference knows the op."""


def _softmax(x: Array, dim: int = -1) -> Array:
    if x.shape[dim] == 0:
        return x
    e = np.exp(x - x.max(dim, keepdims=True))
    return np.asarray(e / e.sum(dim, keepdims=True))


def _rms_norm(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def _layer_norm(x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight
    return np.asarray(y if bias is None else y + bias)


def _linear(x: Array, w: Array, bias: Array | None = None) -> Array:
    y = x @ w.T
    return np.asarray(y if bias is None else y + bias)


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _sum(x: Array, dims: Any = None, *, keepdim: bool = False) -> Array:
    # Integers wrap in their own dtype.
    kind = x.dtype if x.dtype.kind in "iu" else None
    return np.asarray(np.sum(x, dims, kind, keepdims=keepdim))


def _mean(x: Array, dims: Any = None, *, keepdim: bool = False) -> Array:
    return np.asarray(np.mean(x, dims, keepdims=keepdim))


def _kv_append(cache: Array, x: Array, positions: Array) -> Array:
    cache = cache.copy()
    for b, row in enumerate(positions):
        cache[b, row] = x[b]
    return cache


def _argmax(x: Array, dim: int = -1) -> Array:
    return np.asarray(np.argmax(x, dim))


def _compare(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b).astype(np.uint8)


FORMULAS: Final[Mapping[str, Callable[..., Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": lambda x: 1 / x,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "silu_mul": lambda gate, up: _silu(gate) * up,
    "abs": np.abs,
    "neg": np.negative,
    "sqr": lambda x: x * x,
    "copy": lambda x: x,
    "where": lambda condition, a, b: np.asarray(np.where(condition != 0, a, b)),
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "matmul": np.matmul,
    "linear": _linear,
    "sum": _sum,
    "mean": _mean,
    "argmax": _argmax,
    "kv_append": _kv_append,
    "assign": lambda target, source: np.broadcast_to(source, target.shape),
}


def _norm_scale(x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """What subtracting the mean may lose: the largest magnitude over the deviation."""
    if not x.shape[-1]:
        return x
    largest = np.abs(x).max(-1, keepdims=True)
    y = largest / np.sqrt(x.var(-1, keepdims=True) + eps) * np.abs(weight)
    return np.asarray(y if bias is None else y + np.abs(bias))


def _group_norm_scale(
    x: Array, weight: Array, bias: Array, groups: int, eps: float = 1e-5
) -> Array:
    if not x.size:
        return x
    rows = x.reshape(x.shape[0], groups, -1)
    largest = np.abs(rows).max(-1, keepdims=True)
    y = np.broadcast_to(largest / np.sqrt(rows.var(-1, keepdims=True) + eps), rows.shape)
    across = (-1, *(1,) * (x.ndim - 2))
    return np.asarray(
        y.reshape(x.shape) * np.abs(weight).reshape(across) + np.abs(bias).reshape(across)
    )


# Where rounding errors grow with something else than the op of the magnitudes.
SCALES: Final[Mapping[str, Callable[..., Array]]] = {
    "layer_norm": _norm_scale,
    "group_norm": _group_norm_scale,
    "group_norm_silu": _group_norm_scale,
}

# Weighted means of one tensor: what rounding may lose grows with its magnitudes.
AVERAGED: Final = {"attention": "v"}

# Products with weights in blocks are products with what the blocks stand for.
DENSE: Final = {"qmatmul": "linear", "moe_qmatmul": "moe_linear"}

# Their results depend on the inputs' own dtype, so f64 copies would say something else.
_OWN_DTYPE = frozenset({"cast", "quantize", "dequantize", "uniform", "normal", "fill"})


def truth(
    spec: OpSpec,
    values: Mapping[str, Value],
    attributes: Mapping[str, Any],
    oracle: Device,
    *,
    linear: bool,
    fixed: Collection[str] = (),
) -> Truth:
    """
    The expected outputs of a call.

    Args:
        spec: the op.
        values: its tensors.
        attributes: its other arguments.
        oracle: a CPU that runs the reference's implementations.
        linear: whether to compute the sum of magnitudes too.
        fixed: tensors whose dtype is the same whatever the op computes in.

    Raises:
        NoTruthError: nobody knows.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of empty rows
        dense = DENSE.get(spec.name)
        if dense is not None:
            spec = catalogue()[dense]
            values = {name: _dequantized(value, oracle) for name, value in values.items()}
        outputs, source = _expected(spec, values, attributes, oracle, fixed)
        scale = None
        special = SCALES.get(spec.name)
        if special is not None:
            given = {name: value.wide for name, value in values.items()}
            scale = special(*given.values(), **_present(attributes))
        elif spec.name in AVERAGED:
            name = AVERAGED[spec.name]
            sizes = {**values, name: _magnitude(values[name])}
            scale = _expected(spec, sizes, attributes, oracle, fixed)[0][0]
            scale = scale * (1 + _score_reach(values, attributes) / 32)
        elif linear and outputs[0].dtype.kind == "f":
            sizes = {name: _magnitude(value) for name, value in values.items()}
            scale = np.abs(_expected(spec, sizes, attributes, oracle, fixed)[0][0])
    return Truth(outputs, f"{source}, dequantized" if dense else source, scale)


def _score_reach(values: Mapping[str, Value], attributes: Mapping[str, Any]) -> Array:
    """
    For each query of an attention, a bound on its scores' sums of magnitudes.

    What a score is off by, its weight is off by in proportion.  Short sums, as scores are,
    lose about one unit of it where the 32 that long ones are allowed would hide half
    precision.  0 for paged and ragged calls, whose keys lie elsewhere.
    """
    if {"q_start", "block_table"} & values.keys():
        return np.zeros(1)
    q, k = (np.abs(values[name].wide) for name in "qk")
    if "kv_len" in values:  # what lies behind is undefined
        valid = np.arange(k.shape[1]) < values["kv_len"].array[:, None]
        k = np.where(valid[:, :, None, None], k, 0.0)
    largest = np.repeat(k.max(1, initial=0.0), q.shape[2] // max(k.shape[2], 1), 1)
    given = attributes.get("scale")
    factor = q.shape[-1] ** -0.5 if given is None else abs(given)
    return np.asarray(np.einsum("bthd,bhd->bth", q, largest)[..., None] * factor)


def _magnitude(value: Value) -> Value:
    if not value.dtype.is_float:
        return value
    return replace(value, array=np.abs(value.wide), dtype=dtypes.f64)


def _expected(
    spec: OpSpec,
    values: Mapping[str, Value],
    attributes: Mapping[str, Any],
    oracle: Device,
    fixed: Collection[str],
) -> tuple[list[Array], str]:
    formula = FORMULAS.get(spec.name)
    blocks = any(v.dtype.is_block for v in values.values())
    if spec.name == "copy" and blocks:
        return [values["x"].array], "the input's bits"
    if formula is not None and not blocks:
        given = {name: value.wide for name, value in values.items()}
        return [np.asarray(formula(*given.values(), **_present(attributes)))], "numpy f64"
    return _by_reference(spec, values, attributes, oracle, fixed)


def _present(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _dequantized(value: Value, oracle: Device) -> Value:
    """The reference's values of a block format, in f64."""
    if not value.dtype.is_block:
        return value
    blocks = _tensor(value.array, value.dtype, value, oracle)
    spec = catalogue()["dequantize"]
    (array,) = _call(spec, {"x": blocks}, {"dtype": dtypes.f64})
    return Value(array, dtypes.f64, value.shape)


def _by_reference(
    spec: OpSpec,
    values: Mapping[str, Value],
    attributes: Mapping[str, Any],
    oracle: Device,
    fixed: Collection[str],
) -> tuple[list[Array], str]:
    """The reference's own result, on f64 copies where the op takes them."""
    widen = spec.name not in _OWN_DTYPE and "dtype" not in attributes
    tensors = {}
    for name, value in values.items():
        array, kind = value.array, value.dtype
        if widen and kind.is_float and name not in fixed:
            array, kind = value.wide, dtypes.f64
        tensors[name] = _tensor(array, kind, value, oracle)
    try:
        return _call(spec, tensors, attributes), "cpu_ref in f64" if widen else "cpu_ref"
    except Exception as exc:
        msg = f"{spec.name}: no formula, and the reference gave {type(exc).__name__}: {exc}"
        raise NoTruthError(msg) from exc


def _tensor(array: Array, kind: DType, value: Value, oracle: Device) -> Tensor:
    if kind.is_block:
        raw = np.ascontiguousarray(array).reshape(-1)
        return Tensor.from_blocks(raw, kind, value.shape, oracle)
    # A copy, for ops that write into it; flat first, as numpy gives empty arrays any strides.
    return Tensor.from_numpy(np.array(array).reshape(-1), oracle).reshape(*value.shape)


def _call(spec: OpSpec, tensors: Mapping[str, Tensor], attributes: Mapping[str, Any]) -> list[Any]:
    args, kwargs = arranged(spec, {**tensors, **attributes})
    result = spec(*args, **kwargs)  # type: ignore[operator]
    results = result if isinstance(result, tuple) else (result,)
    return [_wide(tensor) for tensor in results]


def _wide(tensor: Tensor) -> Array:
    array = tensor.numpy()
    return array.astype(np.float64) if tensor.dtype.is_float else array


def arranged(spec: OpSpec, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as the op's signature wants them."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in spec.signature.parameters.items():
        if name not in given:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(given[name])
        else:
            kwargs[name] = given[name]
    return args, kwargs
