"""
The element types of tensors.

Plain dtypes store one element in ``block_bytes`` bytes.  The block formats of
GGUF store ``block_size`` consecutive elements of a row in ``block_bytes`` bytes
(sizes and type ids: ggml's ``ggml-common.h`` and the GGUF specification).
"""

from __future__ import annotations

from typing import Final
from typing import Literal

import ml_dtypes
import numpy as np

from propolis.errors import DTypeError
from propolis.wording import did_you_mean


Kind = Literal["float", "int", "uint", "block"]


class DType:
    """
    One element type.  Instances are singletons: compare them with ``is``.

    Attributes:
        name: the name users type, for example ``"bf16"`` or ``"q4_k"``.
        kind: ``"float"``, ``"int"``, ``"uint"``, or ``"block"`` for the GGUF
            block formats.
        is_block: whether elements are stored in quantised blocks.
        block_size: elements in one block; 1 for plain dtypes.
        block_bytes: bytes of one block; the item size of plain dtypes.
        numpy: the numpy dtype of one element, or uint8 (raw bytes) for block
            formats.
        ggml_type: the type id in GGUF files, or None when GGUF has none.
    """

    __slots__ = ("block_bytes", "block_size", "ggml_type", "is_block", "kind", "name", "numpy")

    name: str
    kind: Kind
    is_block: bool
    block_size: int
    block_bytes: int
    numpy: np.dtype
    ggml_type: int | None

    def __init__(
        self,
        name: str,
        kind: Kind,
        numpy: object,
        ggml_type: int | None,
        *,
        block: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.numpy = np.dtype(numpy)  # type: ignore[call-overload]
        self.ggml_type = ggml_type
        self.is_block = kind == "block"
        self.block_size, self.block_bytes = block or (1, self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        """Whether this is a plain floating-point dtype."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether this is a plain integer dtype, signed or not."""
        return self.kind in ("int", "uint")

    def nbytes(self, numel: int) -> int:
        """
        Bytes that ``numel`` consecutive elements take.

        Raises:
            DTypeError: ``numel`` is not a multiple of the block size.
        """
        blocks, rest = divmod(numel, self.block_size)
        if rest:
            msg = (
                f"{self.name}: {numel} elements do not fill whole blocks of "
                f"{self.block_size}; the last dimension must be a multiple of {self.block_size}"
            )
            raise DTypeError(msg)
        return blocks * self.block_bytes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return parse_dtype, (self.name,)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self


f64: Final = DType("f64", "float", np.float64, 28)
f32: Final = DType("f32", "float", np.float32, 0)
f16: Final = DType("f16", "float", np.float16, 1)
bf16: Final = DType("bf16", "float", ml_dtypes.bfloat16, 30)
f8e4m3: Final = DType("f8e4m3", "float", ml_dtypes.float8_e4m3fn, None)
f8e5m2: Final = DType("f8e5m2", "float", ml_dtypes.float8_e5m2, None)
u8: Final = DType("u8", "uint", np.uint8, None)
u32: Final = DType("u32", "uint", np.uint32, None)
i8: Final = DType("i8", "int", np.int8, 24)
i16: Final = DType("i16", "int", np.int16, 25)
i32: Final = DType("i32", "int", np.int32, 26)
i64: Final = DType("i64", "int", np.int64, 27)

q4_0: Final = DType("q4_0", "block", np.uint8, 2, block=(32, 18))
q4_1: Final = DType("q4_1", "block", np.uint8, 3, block=(32, 20))
q5_0: Final = DType("q5_0", "block", np.uint8, 6, block=(32, 22))
q5_1: Final = DType("q5_1", "block", np.uint8, 7, block=(32, 24))
q8_0: Final = DType("q8_0", "block", np.uint8, 8, block=(32, 34))
q8_1: Final = DType("q8_1", "block", np.uint8, 9, block=(32, 36))
q2_k: Final = DType("q2_k", "block", np.uint8, 10, block=(256, 84))
q3_k: Final = DType("q3_k", "block", np.uint8, 11, block=(256, 110))
q4_k: Final = DType("q4_k", "block", np.uint8, 12, block=(256, 144))
q5_k: Final = DType("q5_k", "block", np.uint8, 13, block=(256, 176))
q6_k: Final = DType("q6_k", "block", np.uint8, 14, block=(256, 210))
q8_k: Final = DType("q8_k", "block", np.uint8, 15, block=(256, 292))
iq4_nl: Final = DType("iq4_nl", "block", np.uint8, 20, block=(32, 18))
iq4_xs: Final = DType("iq4_xs", "block", np.uint8, 23, block=(256, 136))
tq1_0: Final = DType("tq1_0", "block", np.uint8, 34, block=(256, 54))
tq2_0: Final = DType("tq2_0", "block", np.uint8, 35, block=(256, 66))
mxfp4: Final = DType("mxfp4", "block", np.uint8, 39, block=(32, 17))

_ORDER: Final = (f64, f32, f16, bf16, f8e4m3, f8e5m2, u8, u32, i8, i16, i32, i64)
_LEGACY: Final = (q4_0, q4_1, q5_0, q5_1, q8_0, q8_1)
_K: Final = (q2_k, q3_k, q4_k, q5_k, q6_k, q8_k)
_FORMATS: Final = (*_LEGACY, *_K, iq4_nl, iq4_xs, tq1_0, tq2_0, mxfp4)
ALL: Final = (*_ORDER, *_FORMATS)
FLOATS: Final = frozenset(d for d in ALL if d.is_float)
INTEGERS: Final = frozenset(d for d in ALL if d.is_integer)
PLAIN: Final = FLOATS | INTEGERS
BLOCKS: Final = frozenset(_FORMATS)

_BY_NAME: Final = {d.name: d for d in ALL}
_BY_NUMPY: Final = {d.numpy: d for d in _ORDER}
_BY_GGML: Final = {d.ggml_type: d for d in ALL if d.ggml_type is not None}


def parse_dtype(name: str | DType) -> DType:
    """
    The dtype of that name.

    Raises:
        DTypeError: there is none; the message lists near matches.
    """
    if isinstance(name, DType):
        return name
    if not isinstance(name, str):
        msg = f"a dtype is given by its name, got {name!r}: known: {', '.join(_BY_NAME)}"
        raise DTypeError(msg)
    found = _BY_NAME.get(name.strip().lower())
    if found is None:
        hint = did_you_mean(name.lower(), _BY_NAME, otherwise=f"known: {', '.join(_BY_NAME)}")
        msg = f"unknown dtype {name!r}: {hint}"
        raise DTypeError(msg)
    return found


def plain_array(array: np.ndarray, what: str = "from_numpy") -> np.ndarray:
    """
    The same memory as an array of numpy's own class: others may compute by rules of their own.

    Raises:
        DTypeError: it is no array, or a masked one.
    """
    if isinstance(array, np.ma.MaskedArray):
        msg = f"{what}: of a masked array some elements count for nothing: fill them first"
        raise DTypeError(msg)
    if not isinstance(array, np.ndarray):
        msg = f"{what}: a {type(array).__name__} is no numpy array: np.asarray makes one"
        raise DTypeError(msg)
    return array.view(np.ndarray)


def from_numpy(dtype: np.dtype) -> DType:
    """
    The dtype whose elements numpy stores as ``dtype``.

    Raises:
        DTypeError: Propolis has no such dtype.
    """
    found = _BY_NUMPY.get(dtype)
    if found is None:
        supported = ", ".join(str(d.numpy) for d in _ORDER)
        msg = f"no dtype for numpy {dtype}: cast the array to one of {supported}"
        raise DTypeError(msg)
    return found


def from_ggml(type_id: int) -> DType | None:
    """The dtype with that GGUF type id, or None when Propolis has none."""
    return _BY_GGML.get(type_id)
