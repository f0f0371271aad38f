"""The layers of Stable Diffusion's models, and where they get their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis_workers.layers import Embedding
from propolis_workers.layers import Linear
from propolis_workers.layers import read_weight


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis import Device
    from propolis import DType
    from propolis_workers.weights import WeightSource

Alias = tuple[str, str]
"""A part of a tensor's name as the models here ask for it, and as other files have it."""


class Conv2d:
    """A convolution with zeros around its input."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.stride = stride
        self.padding = padding

    def __call__(self, x: Tensor) -> Tensor:
        """(b, in, h, w) -> (b, out, h', w')."""
        return ops.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


class GroupNorm:
    """A norm over groups of channels and all positions."""

    def __init__(self, weight: Tensor, bias: Tensor, groups: int, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.groups = groups
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """(b, channels, ...) -> the same."""
        return ops.group_norm(x, self.weight, self.bias, self.groups, self.eps)

    def silu(self, x: Tensor) -> Tensor:
        """(b, channels, ...) -> the same, activated."""
        return ops.group_norm_silu(x, self.weight, self.bias, self.groups, self.eps)


class LayerNorm:
    """A norm over the last dimension."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Weights:
    """
    Makes layers from the weights of a file, on a device and in one dtype.

    Attributes:
        device: where the weights go.
        dtype: what they become, and the dtype that activations have.
        modules: the linear and convolution layers made so far, by full name; whoever
            gives one another ``weight`` (a LoRA) changes the model.  A convolution of
            1x1 that the models here do as a linear layer is one: (out, in).
    """

    def __init__(
        self,
        source: WeightSource,
        device: Device,
        dtype: DType = dtypes.f32,
        prefix: str = "",
        *,
        aliases: Sequence[Alias] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """
        Prepare to read.

        Args:
            source: the file.
            device: where the weights go.
            dtype: a plain float dtype.
            prefix: stands before every name, with its dot.
            aliases: how else a name may be spelled in files, all of them together;
                ``modules`` has the names as asked for.
            progress: called with the bytes of each tensor once it is there.
        """
        self.device = device
        self.dtype = dtype
        self.modules: dict[str, Linear | Conv2d] = {}
        self._source = source
        self._prefix = prefix
        self._aliases = tuple(aliases)
        self._progress = progress or (lambda _: None)

    def sub(self, name: str) -> Weights:
        """Those whose names begin with ``name`` and a dot, to be asked for without it."""
        part = Weights(
            self._source,
            self.device,
            self.dtype,
            f"{self._prefix}{name}.",
            aliases=self._aliases,
            progress=self._progress,
        )
        part.modules = self.modules
        return part

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of that name."""
        return self._stored(name) in self._source.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """
        A tensor; the file's may have further dimensions of size 1 at its end, or fewer.

        Raises:
            ModelError: it is missing or has another shape; the message names it.
        """
        tensor = self._read(name, shape)
        return tensor if tensor.dtype is self.dtype else ops.cast(tensor, self.dtype)

    def linear(
        self, name: str, width_in: int, width_out: int, *, bias: bool = True, whole: bool = True
    ) -> Linear:
        """
        A linear layer; its weight may be stored as that of a 1x1 convolution.

        Args:
            name: of the layer.
            width_in: elements that it reads.
            width_out: elements that it makes.
            bias: whether it has one.
            whole: whether its weight is used as it is, and not in parts: then it may be prepared.
        """
        weight = self.tensor(f"{name}.weight", (width_out, width_in))
        weight = prepared(weight) if whole else weight
        layer = Linear(weight, self.tensor(f"{name}.bias", (width_out,)) if bias else None)
        self.modules[self._prefix + name] = layer
        return layer

    def conv2d(
        self,
        name: str,
        channels_in: int,
        channels_out: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
    ) -> Conv2d:
        """A convolution with a square kernel and a bias."""
        shape = (channels_out, channels_in, kernel, kernel)
        weight = prepared(self.tensor(f"{name}.weight", shape))
        bias = self.tensor(f"{name}.bias", (channels_out,))
        layer = Conv2d(weight, bias, stride=stride, padding=padding)
        self.modules[self._prefix + name] = layer
        return layer

    def group_norm(self, name: str, channels: int, groups: int, eps: float) -> GroupNorm:
        """A norm over groups of channels."""
        weight = self.tensor(f"{name}.weight", (channels,))
        return GroupNorm(weight, self.tensor(f"{name}.bias", (channels,)), groups, eps)

    def layer_norm(self, name: str, width: int, eps: float = 1e-5) -> LayerNorm:
        """A norm over the last dimension."""
        weight = self.tensor(f"{name}.weight", (width,))
        return LayerNorm(weight, self.tensor(f"{name}.bias", (width,)), eps)

    def embedding(self, name: str, rows: int, width: int) -> Embedding:
        """An embedding table, in the file's dtype; its rows come in ours."""
        return Embedding(self._read(f"{name}.weight", (rows, width)), self.dtype)

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in the file's dtype, if that is a plain one."""
        stored = self._stored(name)
        info = self._source.tensors.get(stored)
        fits = info is not None and _without_ones(info.shape) == _without_ones(shape)
        raw, dtype = read_weight(self._source, stored, info.shape if info and fits else shape)
        tensor = Tensor.from_blocks(raw, dtype, shape, self.device)
        self._progress(raw.nbytes)
        return ops.dequantize(tensor, self.dtype) if dtype.is_block else tensor

    def _stored(self, name: str) -> str:
        """The file's name of a tensor; as asked for where it has none."""
        name = other = self._prefix + name
        for ours, theirs in self._aliases:
            other = other.replace(ours, theirs, 1)
        tensors = self._source.tensors
        return other if name not in tensors and other in tensors else name


def prepared(weight: Tensor) -> Tensor:
    """A weight of a linear layer or a convolution as whoever serves these best wants it."""
    op = ops.linear if len(weight.shape) == 2 else ops.conv2d
    return DispatchTable.of(weight.device).prepare(op, op.key(weight.dtype), weight)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


__all__ = ["Alias", "Conv2d", "Embedding", "GroupNorm", "LayerNorm", "Linear", "Weights"]
