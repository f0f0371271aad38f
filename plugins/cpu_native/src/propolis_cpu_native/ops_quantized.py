"""Products with weights in GGUF block formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Prepared
from propolis import Priority
from propolis import Tensor
from propolis import dtypes
from propolis_cpu_native._implementation import MANY
from propolis_cpu_native._implementation import implementation
from propolis_cpu_native._implementation import matrix_implementation
from propolis_cpu_native._implementation import packed
from propolis_cpu_native._native import FLOATS
from propolis_cpu_native._native import KINDS
from propolis_cpu_native._native import Way
from propolis_cpu_native._native import aligned
from propolis_cpu_native._native import lasting
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import OpImpl


FORMATS: Final = frozenset(dtypes.BLOCKS) - {dtypes.q8_1, dtypes.q8_k}
"""The block formats of weights; the other two are of activations."""

TILE: Final = 16
"""Rows of a weight that are repacked together."""


def prepare(w: Tensor) -> Prepared:
    """Repack a weight: the same bits, sixteen rows together."""
    tiles = _repacked(w, lasting)
    shape, name, threads = w.shape, w.dtype.name, w.device.threads

    def unpack(raw: np.ndarray) -> None:
        native().unpack(raw, tiles, name, *shape, threads)

    return packed(w, tiles, unpack, "repacked, as small as in the file")


def _repacked(w: Tensor, memory: Callable[[int], np.ndarray]) -> np.ndarray:
    rows, width = w.shape
    blocks = width // w.dtype.block_size
    tiles = memory(-(-rows // TILE) * blocks * native().tile_bytes(w.dtype.name))
    raw = np.ascontiguousarray(w.array)
    native().repack(tiles, raw, w.dtype.name, rows, width, w.device.threads)
    return tiles


def supports_matrix(x: Tensor, w: Tensor, /) -> str | None:
    """None, or why not."""
    del w
    rows = math.prod(x.shape[:-1])
    return f"{rows} rows do not pay for taking weights apart" if rows < MANY else None


def multiply(out: Tensor, x: Tensor, w: Tensor, way: Way, *, gated: bool = False) -> None:
    """
    ``x @ dequantize(w).T``, in such a way; a weight that is not repacked is for the time.

    By matrices, gated: ``silu`` of the first half of f32's columns times the second, of 16 and 16.
    """
    tiles = w.prepared.get(prepare)
    if tiles is None:
        tiles = _repacked(w, aligned)
    rows, width = w.shape
    native().qmatmul(
        out.array,
        x.array,
        tiles,
        w.dtype.name,
        KINDS[x.dtype],
        math.prod(x.shape[:-1]),
        rows,
        width,
        out.device.threads,
        way,
        gated,
    )


def qmatmul(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """``x @ dequantize(w).T``, with sums in f32."""
    multiply(out, x, w, Way.EXACT)


def qmatmul_rounded(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """The same with activations rounded to 8 bits, 32 with a scale, to 16 where one stands out."""
    multiply(out, x, w, Way.TILES)


def qmatmul_matrix(out: Tensor, x: Tensor, w: Tensor, /) -> None:
    """The same by tiles of matrices, both factors rounded to bf16."""
    multiply(out, x, w, Way.MATRIX)


_DTYPES: Final = {"x": FLOATS, "w": FORMATS}

_FOUND: Final = matrix_instructions()

NO_MATRIX: Final = (
    ""
    if _FOUND == "AMX"
    else "products of bytes are faster than of bf16, but for AMX's"
    if _FOUND
    else "no instructions for bf16: neither AVX512_BF16 nor AMX"
)
"""Why tiles of matrices do not multiply blocks here; empty where they do."""


def products(
    op: str,
    rounded: Callable[..., None],
    exact: Callable[..., None],
    prepare: Callable[[Tensor], Prepared],
) -> list[OpImpl]:
    """An op with weights in blocks, which the one multiplies with rounded activations."""
    shared = {"dtypes": _DTYPES, "prepare": prepare}
    return [
        implementation(
            op,
            rounded,
            variant="rounded",
            priority=Priority.GENERIC + 10,
            exact=False,
            notes="activations rounded to 8 bits, to 16 where some stand out; weights repacked",
            **shared,
        ),
        implementation(op, exact, notes="activations as they are; weights repacked", **shared),
    ]


OPS: Final = [
    matrix_implementation(
        "qmatmul",
        qmatmul_matrix,
        dtypes=_DTYPES,
        prepare=prepare,
        supports=supports_matrix,
        notes="activations and weights rounded to bf16; weights repacked",
        unusable=NO_MATRIX,
    ),
    *products("qmatmul", qmatmul_rounded, qmatmul, prepare),
]
