"""Checkpoints in f8e4m3, whose weights have a scale a block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.weights import TensorInfo


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from propolis_workers.weights import Weights

METHOD: Final = "fp8"
_SCALES: Final = "_scale_inv"


def block_of(said: Mapping[str, Any]) -> tuple[int, int] | None:
    """
    Rows and columns that share a scale, by a ``quantization_config``; None for whole tensors.

    Raises:
        UnsupportedModelError: it is another method, or another format.
    """
    method, kind = said.get("quant_method"), said.get("fmt", "e4m3")
    if method != METHOD or kind != "e4m3":
        what = f"{method!r:.40}" if method else "an unknown method"
        what = f"{what} in {kind!r:.40}" if method == METHOD else what
        msg = (
            f"config.json: weights quantised by {what}; supported: plain ones, 'fp8' in 'e4m3', "
            f"'mxfp4', or a GGUF file"
        )
        raise UnsupportedModelError(msg)
    block = said.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(_positive(n) for n in block):
        msg = (
            f"config.json: weight_block_size is {str(block)[:60]!r}, not two whole numbers above 0"
        )
        raise ModelError(msg)
    return block[0], block[1]


def _positive(number: object) -> bool:
    return type(number) is int and 0 < number <= 1 << 24


class Scaled:
    """
    A checkpoint's tensors, those with scales as the f32 numbers that they stand for.

    Attributes:
        tensors: what there is, by name.
    """

    def __init__(self, source: Weights, block: tuple[int, int] | None) -> None:
        """
        Describe the tensors; none is computed yet.

        Args:
            source: the files.
            block: rows and columns that share a scale; None where a tensor has one alone.
        """
        self._source = source
        self._block = block
        infos: dict[str, TensorInfo] = {}
        for name, info in source.tensors.items():
            if name.endswith(_SCALES) and name.removesuffix(_SCALES) in source.tensors:
                continue
            scaled = name + _SCALES in source.tensors
            if info.dtype is dtypes.f8e4m3 and not scaled:
                msg = (
                    f"tensor {name} is f8e4m3 and has no {name.rpartition('.')[2]}{_SCALES}: other "
                    f"ways to scale are not read; supported: scales as DeepSeek V3 has them, or a "
                    f"GGUF file"
                )
                raise UnsupportedModelError(msg)
            if scaled:
                nbytes = dtypes.f32.nbytes(math.prod(info.shape))
                infos[name] = TensorInfo(name, dtypes.f32, info.shape, info.offset, nbytes)
            else:
                infos[name] = info
        self.tensors: Mapping[str, TensorInfo] = infos

    def data(self, name: str) -> np.ndarray:
        """
        The bytes of a tensor.

        Raises:
            ModelError: there is no such tensor, or its scales do not fit.
        """
        scales = name + _SCALES
        if scales not in self._source.tensors:
            return self._source.data(name)
        values, each = self._wide(name), self._wide(scales)
        if each.size != 1:
            each = self._spread(scales, each, values.shape)
        product: np.ndarray = np.multiply(values, each, dtype=np.float32)
        return product.reshape(-1).view(np.uint8)

    def _spread(self, name: str, each: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The scale of each number, of those of blocks."""
        block = self._block or (0, 0)
        if len(shape) == 2 and all(block):
            rows, columns = (min(n, size) for n, size in zip(block, shape, strict=True))
            if each.shape == (-(-shape[0] // rows), -(-shape[1] // columns)):
                return each.repeat(rows, 0).repeat(columns, 1)[: shape[0], : shape[1]]
        msg = (
            f"tensor {name} has shape {each.shape}, which is no scale for each block of "
            f"{block[0]} x {block[1]} of {shape}"
        )
        raise ModelError(msg)

    def _wide(self, name: str) -> np.ndarray:
        info = self._source.tensors[name]
        raw = Tensor.from_blocks(
            self._source.data(name), info.dtype, info.shape, default_runtime().cpu
        )
        return ops.cast(raw, dtypes.f32).numpy()


__all__ = ["METHOD", "Scaled", "block_of"]
