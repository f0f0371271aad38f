"""Tensors of any layout in device memory, with guard bytes around them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.layout import Layout
from propolis.tensor import Tensor
from propolis_conformance.strides import StridePattern


if TYPE_CHECKING:
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.tensor import Device
    from propolis_conformance.inputs import Value

# A multiple of every alignment that kernels ask for.
GUARD = 256

CONTIGUOUS = StridePattern()


class Placed:
    """
    A tensor that knows the bytes it was made with, and those around it.

    Attributes:
        tensor: the tensor.
    """

    def __init__(
        self, device: Device, dtype: DType, shape: Shape, pattern: StridePattern, fill: int
    ) -> None:
        units = (*shape[:-1], shape[-1] // dtype.block_size) if shape else ()
        pattern = pattern.whole_blocks() if dtype.is_block else pattern
        strides = pattern.strides(units)
        guard = GUARD // dtype.block_bytes if not dtype.is_block else 64
        start = guard + pattern.offset
        reach = Layout(units, strides).extent
        self._bytes = np.full((start + reach + guard) * dtype.block_bytes, fill, np.uint8)
        self._units, self._strides = units, tuple(s * dtype.block_bytes for s in strides)
        self._start = start * dtype.block_bytes
        size = dtype.block_size
        own = (*(s * size for s in strides[:-1]), strides[-1]) if strides else ()
        layout = Layout(shape, own, start * size)
        storage = device.memory.allocate(self._bytes.nbytes)
        self.tensor = Tensor(storage, layout, dtype, device)
        self._was = (shape, dtype, storage, layout)

    def _view(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements among the bytes, each one item of raw bits."""
        item = np.dtype(f"V{self._was[1].block_bytes}")
        return np.ndarray(self._units, item, raw, self._start, self._strides)

    def write(self, value: Value | None = None) -> None:
        """Bring the bytes to the device, with elements ``value``; poison where None."""
        if value is not None and self.tensor.numel:
            item = np.dtype(f"V{value.dtype.block_bytes}")
            raw = np.ascontiguousarray(value.array).reshape(-1).view(item)
            self._view(self._bytes)[...] = raw.reshape(self._units)
        self.tensor.device.memory.copy_in(self._was[2], 0, self._bytes)

    def read(self) -> tuple[np.ndarray[Any, Any], bool]:
        """The elements now, and whether the bytes beside them are as they were."""
        raw = np.empty_like(self._bytes)
        self.tensor.device.memory.copy_out(raw, self._was[2], 0)
        _, dtype, _, _ = self._was
        elements = np.ascontiguousarray(self._view(raw))
        expected = self._bytes.copy()
        if elements.size:
            self._view(expected)[...] = elements
        bits = elements.reshape(-1).view(np.uint8)
        if dtype.is_block:
            shape = (*self._units[:-1], self._units[-1] * dtype.block_bytes)
            return bits.reshape(shape), bool((raw == expected).all())
        return bits.view(dtype.numpy).reshape(self._units), bool((raw == expected).all())

    @property
    def unchanged(self) -> bool:
        """Whether every byte is as it was written."""
        raw = np.empty_like(self._bytes)
        self.tensor.device.memory.copy_out(raw, self._was[2], 0)
        return bool((raw == self._bytes).all())

    @property
    def intact(self) -> bool:
        """Whether the tensor still is what was handed over: shape, dtype, memory."""
        t = self.tensor
        now = (t.shape, t.dtype, t.layout)
        return now == (self._was[0], self._was[1], self._was[3]) and t.storage is self._was[2]


def place(device: Device, value: Value, pattern: StridePattern = CONTIGUOUS) -> Placed:
    """A drawn tensor on the device."""
    placed = Placed(device, value.dtype, value.shape, pattern, 0xFF)
    placed.write(value)
    return placed


def repeat(value: Value) -> Value:
    """The same tensor with its first slice everywhere, as broadcasting it gives."""
    if not value.shape or not value.array.size:
        return value
    array = np.broadcast_to(value.array[:1], value.array.shape).copy()
    return replace(value, array=array)
