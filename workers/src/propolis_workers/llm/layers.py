"""The layers that hold weights, and where they get them."""

from __future__ import annotations

import math
from abc import ABC
from abc import abstractmethod
from collections.abc import Callable  # noqa: TC003  (fields of a NamedTuple)
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

import numpy as np

from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import ModelError
from propolis_workers.layers import Embedding
from propolis_workers.layers import Linear
from propolis_workers.layers import read_weight
from propolis_workers.llm.memory import is_shared


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis import Device
    from propolis import DType
    from propolis.opspec.spec import OpSpec
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.attending import Room
    from propolis_workers.llm.network.rotation import Rotation
    from propolis_workers.weights import Weights


class Joined(NamedTuple):
    """Two ops that multiply norms of sums: by weights in blocks, and by others."""

    blocks: ops.PairOp[Any]
    plain: ops.PairOp[Any]

    def of(self, weight: Tensor) -> ops.PairOp[Any]:
        """The one for such a weight."""
        return self.blocks if weight.dtype.is_block else self.plain


NORMED: Final = Joined(ops.add_rms_norm_qmatmul, ops.add_rms_norm_linear)
TURNED: Final = Joined(ops.add_rms_norm_qmatmul_rope, ops.add_rms_norm_linear_rope)
KEPT: Final = Joined(
    ops.add_rms_norm_qmatmul_rope_kv_append, ops.add_rms_norm_linear_rope_kv_append
)


class MergedLinear:
    """
    Linear layers of one input, as one product where their weights allow it.

    A product of one row reads the weights once and computes little: a step of
    decoding is faster by a sixth with three of four products fewer.
    """

    def __init__(self, layers: Sequence[Linear], widths: Sequence[int]) -> None:
        """
        Hold the layers.

        Args:
            layers: one for each output, or a single one for all of them.
            widths: elements of each output.
        """
        self.layers = list(layers)
        self.widths = list(widths)

    def __call__(self, x: Tensor) -> list[Tensor]:
        """(..., in) -> (..., width) for each output; views of one tensor where merged."""
        if len(self.layers) > 1:
            return [layer(x) for layer in self.layers]
        return self.parts_of(self.layers[0](x))

    def of_norm(
        self, norm: RMSNorm, x: Tensor, y: Tensor, *, gated: bool = False
    ) -> tuple[Tensor, Tensor]:
        """``x + y``, and the one layer's product with its norm; see ``Layers.joins_norm``."""
        weight = self.layers[0].weight
        rows = x, y, norm.weight, weight
        both: tuple[Tensor, Tensor] = NORMED.of(weight)(*rows, norm.eps, gated=gated)
        return both

    def kept_of_norm(
        self,
        norm: RMSNorm,
        x: Tensor,
        y: Tensor,
        room: Room,
        positions: Tensor,
        rotation: Rotation,
        heads: int,
    ) -> tuple[Tensor, Tensor]:
        """The same, its keys rotated too: the first heads are returned, keys and values kept."""
        weight, tables = self.layers[0].weight, (rotation.cos, rotation.sin)
        given = room.kept, x, y, norm.weight, weight, room.slots, positions, *tables
        how = {"heads": heads, "interleaved": rotation.interleaved}
        both: tuple[Tensor, Tensor] = KEPT.of(weight)(*given, norm.eps, **how)
        return both

    def turned_of_norm(
        self,
        norm: RMSNorm,
        x: Tensor,
        y: Tensor,
        positions: Tensor,
        rotation: Rotation,
        heads: int,
        head_dim: int,
    ) -> tuple[Tensor, Tensor]:
        """The same, of which the first heads are rotated."""
        weight, tables = self.layers[0].weight, (positions, rotation.cos, rotation.sin)
        given = x, y, norm.weight, weight, *tables
        how = {"heads": heads, "head_dim": head_dim, "interleaved": rotation.interleaved}
        both: tuple[Tensor, Tensor] = TURNED.of(weight)(*given, norm.eps, **how)
        return both

    def parts_of(self, y: Tensor) -> list[Tensor]:
        """What is whose of a product that is all of them."""
        outputs, start = [], 0
        for width in self.widths:
            outputs.append(y.narrow(len(y.shape) - 1, start, width))
            start += width
        return outputs


class _Norm(ABC):
    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""

    def of_sum(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """``x + y``, and its norm."""
        total = ops.add(x, y)
        return total, self(total)


class RMSNorm(_Norm):
    """Root-mean-square normalisation."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return ops.rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """``x + y``, and its norm, in one op."""
        return ops.add_rms_norm(x, y, self.weight, self.eps)


class LayerNorm(_Norm):
    """Normalisation to mean 0 and variance 1."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class HeadNorms(_Norm):
    """Layer normalisation of each head, whose weights are its own."""

    def __init__(self, weight: Tensor, config: ModelConfig) -> None:
        """
        Hold the weights.

        Args:
            weight: (heads, head_dim).
            config: the model's numbers.
        """
        ones = ops.full(weight.shape[-1:], 1.0, weight.dtype, weight.device)
        self.plain = LayerNorm(ones, None, config.norm_eps)
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """(..., heads, head_dim) -> the same."""
        return ops.mul(self.plain(x), self.weight.broadcast_to(*x.shape))


Norm = RMSNorm | LayerNorm | HeadNorms


def sum_and_norm(norm: Norm | None, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """``x + y``, or ``x`` where there is nothing to add, and its norm, if there is one."""
    if norm is not None and y is not None:
        return norm.of_sum(x, y)
    x = x if y is None else ops.add(x, y)
    return x, x if norm is None else norm(x)


class ExpertsLinear:
    """``x @ weight[expert].T + bias[expert]``, of the experts of each token."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """(tokens, k or 1, in), (tokens, k) i64 -> (tokens, k, out)."""
        product = ops.moe_qmatmul if self.weight.dtype.is_block else ops.moe_linear
        y = product(x, self.weight, chosen)
        return y if self.bias is None else ops.add(y, ops.embedding(chosen, self.bias))


class Activation(NamedTuple):
    """A function between the products of a feed-forward network."""

    plain: Callable[[Tensor], Tensor]
    gated: Callable[[Tensor, Tensor], Tensor]  # of the first, times the second


def clamped_swish_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gpt-oss's: a steeper swish of a clamped gate, times one more than what is clamped too."""
    gate = ops.clamp(gate, -math.inf, 7.0)
    swish = ops.mul(gate, ops.sigmoid(ops.affine(gate, 1.702, 0.0)))
    return ops.mul(swish, ops.affine(ops.clamp(up, -7.0, 7.0), 1.0, 1.0))


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": Activation(ops.silu, ops.silu_mul),
    "gelu_tanh": Activation(ops.gelu, ops.gelu_mul),
    "gelu_erf": Activation(ops.gelu_erf, ops.gelu_erf_mul),
    "clamped_swish": Activation(ops.silu, clamped_swish_mul),
}


class Layers:
    """
    Makes layers from the weights of a file, on a device.

    Weights in block formats stay so, and the implementation that will serve them may
    prepare them; plain ones get the dtype that activations have.

    Attributes:
        device: where the weights go.
        dtype: of activations.
    """

    def __init__(
        self,
        source: Weights,
        names: Mapping[str, str],
        device: Device,
        progress: Callable[[int], None] | None = None,
        *,
        dtype: DType = dtypes.f32,
    ) -> None:
        """
        Prepare to read.

        Args:
            source: the file.
            names: our names -> names in the file, without ``.weight`` or ``.bias``,
                ``{}`` for the layer's number.
            device: where the weights go.
            progress: called with the bytes of each tensor once it is there.
            dtype: of activations: f32, f16 or bf16.
        """
        self.device = device
        self.dtype = dtype
        self._source = source
        self._names = names
        self._progress = progress or (lambda _: None)

    def output(self, config: ModelConfig, embedding: Embedding) -> Linear:
        """
        What makes logits of states; of many models the embedding, turned round.

        Then both are one tensor where whoever multiplies takes it as it lies, or where rows are
        looked up in what he makes of it.
        """
        sizes = config.width, config.vocab_size
        if not config.tied or self.has("output"):
            return self.linear("output", *sizes)
        if is_shared(embedding.table.dtype, self.dtype, self.device):
            embedding.table = weight = self._prepared(embedding.table)
            op = ops.embedding
            table = DispatchTable.of(self.device)
            table.prepare(op, op.key(dtypes.i64, weight.dtype), weight)  # by whom it was prepared
            return Linear(weight)
        return self.linear("embedding", *sizes)

    def linear(self, name: str, width_in: int, width_out: int) -> Linear:
        """A linear layer."""
        flat = width_out == 1 and self.has(name) and len(self.shape(name)) == 1
        weight = self._tensor(name, (width_in,) if flat else (width_out, width_in))
        weight = weight.unsqueeze(0) if flat else weight
        bias = None
        if self._has_bias(name):
            bias = self.plain(self._tensor(name, (width_out,), ".bias"))
        return Linear(self._prepared(weight), bias)

    def merged_linear(
        self, names: Mapping[str, int], width_in: int, *, merged: str = ""
    ) -> MergedLinear:
        """
        Linear layers of one input.

        Args:
            names: name -> elements of its output.
            width_in: elements of the input.
            merged: the name of all of them as one, which a file may have instead.
        """
        if self.has(merged) or not all(map(self.knows, names)):
            whole = self.linear(merged, width_in, sum(names.values()))
            return MergedLinear([whole], list(names.values()))
        same = len({self._source.tensors[n].dtype for n in self._present(names)}) == 1
        if not same or any(map(self._has_bias, names)):
            layers = [self.linear(name, width_in, width) for name, width in names.items()]
            return MergedLinear(layers, list(names.values()))
        # Joined on the host: each byte goes to the device once.
        parts = [self._raw(name, (width, width_in)) for name, width in names.items()]
        raw = self._joined([part for part, _ in parts])
        shape = (sum(names.values()), width_in)
        weight = Tensor.from_blocks(raw, parts[0][1], shape, self.device)
        return MergedLinear([Linear(self._prepared(weight))], list(names.values()))

    def joins_norm(self, layers: MergedLinear, joined: Joined = NORMED) -> bool:
        """Whether a kernel does such an op of a norm and of layers that are one."""
        first = layers.layers[0]
        if len(layers.layers) > 1 or first.bias is not None:
            return False
        stored, op = first.weight.dtype, joined.of(first.weight)
        kinds = (self.dtype, stored) if stored.is_block else (stored,)
        known = self.dtype in op.dtypes["x"] and (stored.is_block or stored is self.dtype)
        return known and self.has_kernel(op, *kinds)

    @property
    def exact(self) -> bool:
        """Whether inputs are computed with as they are."""
        return DispatchTable.of(self.device).rules.exact

    @property
    def rounds_queries(self) -> bool:
        """Whether products of 16 bits are worth rounding the queries of prompts."""
        return self.device.kind != "cpu" and not self.exact

    def has_kernel(self, op: OpSpec, *kinds: DType) -> bool:
        """Whether somebody does an op, not the reference, which gains nothing by it."""
        return has_kernel(self.device, op, *kinds)

    def embedding(self, name: str, rows: int, width: int) -> Embedding:
        """An embedding table, in the file's dtype; its rows come in that of activations."""
        return Embedding(self._tensor(name, (rows, width)), self.dtype)

    def norm(self, name: str, width: int, config: ModelConfig, heads: int = 0) -> Norm:
        """
        A norm, of the kind that the model has.

        Args:
            name: of its weight.
            width: elements that are normalised together.
            config: the model's numbers.
            heads: how many of them there are, which differ in their weights; 0 for one.
        """
        if heads:
            return HeadNorms(self.plain(self._stacked(name, heads, (width,))), config)
        weight = self.vector(name, width, dtype=dtypes.f32 if config.norm_offset else None)
        if config.norm_offset:
            weight = self.plain(ops.affine(weight, 1.0, config.norm_offset))  # rounded once
        if config.norm == "rms":
            return RMSNorm(weight, config.norm_eps)
        return LayerNorm(weight, self.bias(name, width), config.norm_eps)

    def vector(
        self, name: str, width: int, suffix: str = ".weight", *, dtype: DType | None = None
    ) -> Tensor:
        """Numbers, in the dtype of activations if not in another."""
        return converted(self._tensor(name, (width,), suffix), dtype or self.dtype)

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers that are arranged anew on the host, f32."""
        return converted(self._tensor(name, shape), dtypes.f32).numpy()

    def taps(self, name: str, width: int, count: int) -> Tensor:
        """(width, taps) of a convolution of each channel by itself, f32."""
        shape = self.shape(name) if self.has(name) else (width, count)
        middle = (1,) * (len(shape) == 3)  # checkpoints have the channels of a group, which are 1
        return converted(self._tensor(name, (width, *middle, count)), dtypes.f32).reshape(
            width, count
        )

    def bias(self, name: str, width: int) -> Tensor | None:
        """What a layer adds; None where the file has nothing of that name."""
        return self.vector(name, width, ".bias") if self._has_bias(name) else None

    def experts(self, name: str, count: int, width_out: int, width_in: int) -> ExpertsLinear:
        """The linear layers of all experts, which a file has as one tensor or each by itself."""
        weight = self._stacked(name, count, (width_out, width_in))
        bias = None
        if self.has(name, ".bias"):
            bias = self.plain(self._tensor(name, (count, width_out), ".bias"))
        if not weight.dtype.is_block:
            return ExpertsLinear(self.plain(weight), bias)
        key = ops.moe_qmatmul.key(self.dtype, weight.dtype)
        table = DispatchTable.of(self.device)
        return ExpertsLinear(table.prepare(ops.moe_qmatmul, key, weight), bias)

    def plain(self, tensor: Tensor) -> Tensor:
        """The same numbers in the dtype of activations."""
        return converted(tensor, self.dtype)

    def knows(self, name: str) -> bool:
        """Whether models of the architecture have such a weight."""
        return self._pattern(name) in self._names

    def has(self, name: str, suffix: str = ".weight") -> bool:
        """Whether the file has one."""
        return self.knows(name) and self._first(name, suffix) in self._source.tensors

    def several(self, name: str) -> bool:
        """Whether the file has the parts of one each by itself."""
        return "{}" in self._name(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one that the file has; of each, where it has several."""
        return self._source.tensors[self._first(name)].shape

    def _prepared(self, weight: Tensor) -> Tensor:
        table = DispatchTable.of(self.device)
        if not weight.dtype.is_block:
            return table.prepare(ops.linear, ops.linear.key(self.dtype), self.plain(weight))
        key = ops.qmatmul.key(self.dtype, weight.dtype)
        return table.prepare(ops.qmatmul, key, weight)

    def _present(self, names: Iterable[str]) -> list[str]:
        """The file's names of those weights that it has."""
        full = [self._name(name) + ".weight" for name in names]
        return [name for name in full if name in self._source.tensors]

    def _has_bias(self, name: str) -> bool:
        return self._name(name) + ".bias" in self._source.tensors

    def _name(self, name: str) -> str:
        """The file's name of a weight, without its suffix."""
        theirs = self._names[self._pattern(name)]
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        return theirs.replace("{}", layer, 1)

    def _first(self, name: str, suffix: str = ".weight") -> str:
        """The file's name of a weight, or of the first of several."""
        return self._full(name, suffix, 0)

    @staticmethod
    def _pattern(name: str) -> str:
        """Our name of a weight, for all layers."""
        parts = name.split(".")
        return ".".join(("layers", "{}", *parts[2:])) if parts[0] == "layers" else name

    def _stacked(self, name: str, count: int, shape: tuple[int, ...]) -> Tensor:
        """Tensors of one shape, which a file has as one or each by itself."""
        if not self.several(name):
            return self._tensor(name, (count, *shape))
        parts = [self._raw(name, shape, number=number) for number in range(count)]
        dtype = parts[0][1]
        if any(other is not dtype for _, other in parts):
            found = ", ".join(sorted({str(other) for _, other in parts}))
            msg = f"tensors {self._name(name)} are of several dtypes: {found}; supported: one"
            raise ModelError(msg)
        raw = self._joined([part for part, _ in parts])
        return Tensor.from_blocks(raw, dtype, (count, *shape), self.device)

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    def _tensor(self, name: str, shape: tuple[int, ...], suffix: str = ".weight") -> Tensor:
        raw, dtype = self._raw(name, shape, suffix)
        return Tensor.from_blocks(raw, dtype, shape, self.device)

    def _raw(
        self, name: str, shape: tuple[int, ...], suffix: str = ".weight", number: int = 0
    ) -> tuple[np.ndarray, DType]:
        """The bytes of a tensor, which must have that shape, and its dtype."""
        raw, dtype = read_weight(self._source, self._full(name, suffix, number), shape)
        self._progress(raw.nbytes)
        return raw, dtype

    def _full(self, name: str, suffix: str, number: int) -> str:
        """The file's name of a weight, or of one of several."""
        return self._name(name).replace("{}", str(number)) + suffix


def has_kernel(device: Device, op: OpSpec, *kinds: DType) -> bool:
    """Whether somebody does an op on a device, not the reference, which gains nothing by it."""
    winner = DispatchTable.of(device).trace(op, op.key(*kinds)).winner
    return winner is not None and winner.priority > Priority.REFERENCE


def converted(tensor: Tensor, dtype: DType) -> Tensor:
    """The same numbers in another dtype."""
    if tensor.dtype.is_block:
        return ops.dequantize(tensor, dtype)
    return tensor if tensor.dtype is dtype else ops.cast(tensor, dtype)
