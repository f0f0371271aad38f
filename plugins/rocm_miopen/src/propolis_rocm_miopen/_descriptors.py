"""MIOpen's descriptions of a convolution and of its tensors, which are made once for a shape."""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis import dtypes
from propolis_rocm_miopen import _ffi


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis_rocm_hip.vendor import Library
    from propolis_rocm_miopen._problem import Problem

KINDS: Final = {dtypes.f16: _ffi.F16, dtypes.f32: _ffi.F32, dtypes.bf16: _ffi.BF16}
"""``miopenDataType_t`` of the dtypes that are offered; sums are in f32."""

_IN_IMAGES: Final = 2


class Order(NamedTuple):
    """
    The descriptors in the order that a family of MIOpen's functions takes them.

    Attributes:
        weights_first: of immediate mode.
        input_first: of finding.
    """

    weights_first: tuple[int, int, int, int]
    input_first: tuple[int, int, int, int]


class Descriptors:
    """
    A convolution's; they are given back with this object.

    Attributes:
        order: of x, w, the convolution and the output.
        output: the output's.
        bias: of (1, out_channels, 1, ...).
        convolution: the convolution's.
    """

    def __init__(self, library: Library, check: Callable[[str, int], None], given: Problem) -> None:
        """
        Make them.

        Args:
            library: MIOpen.
            check: raises for the status of a function.
            given: what they describe.

        Raises:
            PropolisError: MIOpen refuses one.
        """
        self._library, self._check = library, check
        rank = len(given.x) - 2
        x, w, y = (self._tensor(given.dtype, shape) for shape in (given.x, given.w, given.y))
        self.output = y
        self.bias = self._tensor(given.dtype, (1, given.y[1], *(1,) * rank))
        self.convolution = conv = self._made("Convolution")
        attributes = map(_ints, (given.padding, given.stride, given.dilation))
        mode = _ffi.TRANSPOSE if given.transposed else _ffi.CONVOLUTION
        self._call("miopenInitConvolutionNdDescriptor", conv, rank, *attributes, mode)
        self._call("miopenSetConvolutionGroupCount", conv, given.groups)
        if any(given.extra) and rank == _IN_IMAGES:
            self._call("miopenSetTransposeConvOutputPadding", conv, *given.extra)
        if library.has("miopenSetConvolutionAttribute"):
            self._call("miopenSetConvolutionAttribute", conv, _ffi.DETERMINISTIC, 1)
        self.order = Order((w, x, conv, y), (x, w, conv, y))

    def _tensor(self, dtype: DType, shape: Shape) -> int:
        """One of a packed tensor."""
        made = self._made("Tensor")
        steps = list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))
        rank, sizes, strides = len(shape), _ints(shape), _ints(steps[::-1])
        self._call("miopenSetTensorDescriptor", made, KINDS[dtype], rank, sizes, strides)
        return made

    def _made(self, kind: str) -> int:
        made = ctypes.c_void_p()
        self._call(f"miopenCreate{kind}Descriptor", ctypes.addressof(made))
        destroy = self._library.function(f"miopenDestroy{kind}Descriptor")
        weakref.finalize(self, _give_back, destroy, made.value, os.getpid())
        return int(made.value or 0)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._library.function(name)(*arguments))


def _ints(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(numbers))(*numbers)


def _give_back(destroy: Callable[[int | None], int], made: int | None, process: int) -> None:
    """Destroy one, save in a forked process, which has none."""
    if os.getpid() == process:
        destroy(made)


__all__ = ["KINDS", "Descriptors", "Order"]
