"""
Which tensor of a model gets which block format: the mixtures that llama.cpp's quantiser documents.

Its rules for a few families alone (Falcon's feed-forward networks, the 70B Llama's values) are not
among them, nor is what it does with an importance matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping

    from propolis import DType


@dataclass(frozen=True, slots=True)
class Mixture:
    """
    A type that a model can be quantised to.

    Attributes:
        base: of most matrices.
        head: of the output, or of the embedding where that is the output too.
        more: of the values and the network's second matrix in those layers that need it most.
        first: of the same in the first layers alone.
        fused: of queries, keys and values that are one matrix.
        file_type: what GGUF files say of it.
    """

    base: DType
    head: DType
    file_type: int
    more: DType | None = None
    first: DType | None = None
    fused: DType | None = None


_Q6 = dtypes.q6_k
MIXTURES: Final[Mapping[str, Mixture]] = {
    "q8_0": Mixture(dtypes.q8_0, dtypes.q8_0, 7),
    "q6_k": Mixture(_Q6, _Q6, 18),
    "q5_k_m": Mixture(dtypes.q5_k, _Q6, 17, more=_Q6, fused=_Q6),
    "q5_k_s": Mixture(dtypes.q5_k, _Q6, 16),
    "q5_1": Mixture(dtypes.q5_1, _Q6, 9),
    "q5_0": Mixture(dtypes.q5_0, _Q6, 8),
    "q4_k_m": Mixture(dtypes.q4_k, _Q6, 15, more=_Q6, fused=dtypes.q5_k),
    "q4_k_s": Mixture(dtypes.q4_k, _Q6, 14, first=dtypes.q5_k),
    "q4_1": Mixture(dtypes.q4_1, _Q6, 3),
    "q4_0": Mixture(dtypes.q4_0, _Q6, 2),
    "bf16": Mixture(dtypes.bf16, dtypes.bf16, 32),
    "f16": Mixture(dtypes.f16, dtypes.f16, 1),
}
"""By name, the largest first of those in blocks."""

# Where rows are no multiple of a format's block, the format that takes its place.
_SMALLER: Final[Mapping[DType, DType]] = {
    dtypes.q4_k: dtypes.q5_0,
    dtypes.q5_k: dtypes.q5_1,
    dtypes.q6_k: dtypes.q8_0,
}
# Matrices that stay as they are: small ones, in which each number counts.
_KEPT = re.compile(r"norm|ffn_gate_inp|shortconv\.conv|ssm_conv1d|rope_|position|token_types")
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_FIRST_VALUES: Final = 4  # layers whose values are among the first
_EXPERTS: Final = 8  # of models whose attention is small beside them


def formats(
    mixture: Mixture, shapes: Mapping[str, tuple[int, ...]], experts: int = 0
) -> dict[str, DType | None]:
    """
    The format of each tensor.

    Args:
        mixture: what is wanted.
        shapes: of the tensors, row-major, by their names in GGUF files.
        experts: in each layer.

    Returns:
        By name; None for those that stay as they are.
    """
    tied = "output.weight" not in shapes
    head = "token_embd.weight" if tied else "output.weight"
    places = {**_places(shapes, "attn_v"), **_places(shapes, "ffn_down", "ffn_down_exps")}
    found: dict[str, DType | None] = {}
    for name, shape in shapes.items():
        if len(shape) < 2 or not name.endswith(".weight") or _KEPT.search(name):
            found[name] = None
            continue
        wanted = mixture.head if name == head else _wanted(mixture, name, places, experts)
        found[name] = _fitting(wanted, shape[-1])
    return found


def _wanted(
    mixture: Mixture, name: str, places: Mapping[str, tuple[int, int]], experts: int
) -> DType:
    layer = _LAYER.fullmatch(name)
    part = layer[2] if layer else ""
    in_k = mixture.base in (dtypes.q4_k, dtypes.q5_k, dtypes.q6_k)
    if part == "attn_qkv" and mixture.fused is not None:
        return mixture.fused
    if experts == _EXPERTS and mixture.base.is_block:
        if part in ("attn_v", "attn_k"):
            return dtypes.q8_0
        if part == "attn_output" and mixture.base is dtypes.q4_k:
            return dtypes.q5_k
    if name in places and in_k:
        index, count = places[name]
        if mixture.more is not None and _needs_more(index, count):
            return mixture.more
        most = _FIRST_VALUES if part == "attn_v" else count // 8
        if mixture.first is not None and index < most:
            return mixture.first
    return mixture.base


def _needs_more(index: int, count: int) -> bool:
    """Whether a layer is in the first or last eighth, or a third one of those between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _places(names: Iterable[str], *parts: str) -> dict[str, tuple[int, int]]:
    """Of the layers that have a part: the how manieth each is, of how many."""
    found = [(int(m[1]), name) for name in names if (m := _LAYER.fullmatch(name)) and m[2] in parts]
    found.sort()
    return {name: (index, len(found)) for index, (_, name) in enumerate(found)}


def _fitting(dtype: DType, row: int) -> DType:
    """The format, or what takes its place where a row is no whole number of its blocks."""
    if row % dtype.block_size:
        dtype = _SMALLER.get(dtype, dtype)
    return dtypes.f16 if row % dtype.block_size else dtype


__all__ = ["MIXTURES", "Mixture", "formats"]
