"""Checkpoints in MXFP4, as gpt-oss's: numbers of four bits, 32 of a row with a scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.errors import ModelError
from propolis_workers.weights import TensorInfo


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.weights import Weights

METHOD: Final = "mxfp4"
_BLOCKS: Final = "_blocks"
_SCALES: Final = "_scales"
_HALF: Final = dtypes.mxfp4.block_size // 2


class Microscaled:
    """
    A checkpoint's tensors, those in MXFP4 as GGUF's blocks of the same bits.

    A file has ``NAME_blocks`` (..., blocks, 16), whose bytes hold two neighbours each, and
    ``NAME_scales`` (..., blocks); here that is ``NAME`` (..., 32 * blocks) in mxfp4, whose bytes
    hold numbers that are 16 apart, behind their scale.

    Attributes:
        tensors: what there is, by name.
    """

    def __init__(self, source: Weights) -> None:
        """
        Describe the tensors; none is rearranged yet.

        Raises:
            ModelError: the shapes of blocks and scales do not fit.
        """
        self._source = source
        infos: dict[str, TensorInfo] = {}
        for name, info in source.tensors.items():
            stem = name.removesuffix(_BLOCKS)
            scales = source.tensors.get(stem + _SCALES)
            if name == stem or scales is None:
                of = name.removesuffix(_SCALES)
                if name == of or of + _BLOCKS not in source.tensors:
                    infos[name] = info
                continue
            if info.shape != (*scales.shape, _HALF) or {info.dtype, scales.dtype} != {dtypes.u8}:
                msg = (
                    f"tensor {name} is {info.dtype} of {info.shape} and {stem}{_SCALES} "
                    f"{scales.dtype} of {scales.shape}: supported are u8, and for each scale "
                    f"{_HALF} bytes of numbers"
                )
                raise ModelError(msg)
            shape = (*scales.shape[:-1], scales.shape[-1] * dtypes.mxfp4.block_size)
            nbytes = dtypes.mxfp4.nbytes(math.prod(shape))
            infos[stem] = TensorInfo(stem, dtypes.mxfp4, shape, info.offset, nbytes)
        self.tensors: Mapping[str, TensorInfo] = infos

    def data(self, name: str) -> np.ndarray:
        """
        The bytes of a tensor.

        Raises:
            ModelError: there is no such tensor.
        """
        info = self.tensors.get(name)
        if info is None or info.dtype is not dtypes.mxfp4:
            return self._source.data(name)
        pairs = self._source.data(name + _BLOCKS).reshape(-1, _HALF)
        made = np.empty((len(pairs), dtypes.mxfp4.block_bytes), np.uint8)
        made[:, 0] = self._source.data(name + _SCALES)
        first, second = pairs[:, : _HALF // 2], pairs[:, _HALF // 2 :]
        made[:, 1::2] = first & 15 | second << 4  # the even ones of either half
        made[:, 2::2] = first >> 4 | second & 240
        return made.reshape(-1)


__all__ = ["METHOD", "Microscaled"]
