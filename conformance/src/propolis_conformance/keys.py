"""The dtypes at which an op is judged, and how they are written."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from propolis import dtypes


if TYPE_CHECKING:
    from collections.abc import Collection

    from propolis.dtypes import DType
    from propolis.opspec.spec import OpSpec


_FEW = 6


def keys(spec: OpSpec, *, every: bool = False) -> list[tuple[DType, ...]]:
    """
    The keys to judge: each dtype of each parameter, the others at their most usual.

    Args:
        spec: the op.
        every: all combinations, where there is time: five floats times twelve block
            formats say little more.
    """
    if every:
        return list(itertools.product(*_allowed(spec)))
    usual = _usual(spec)
    found: dict[tuple[DType, ...], None] = {}
    for i, kinds in enumerate(_allowed(spec)):
        for kind in kinds:
            found[*usual[:i], kind, *usual[i + 1 :]] = None
    return list(found)


def label_of(spec: OpSpec, key: tuple[DType, ...]) -> str:
    """What an op at a key is called: ``"qmatmul[f16,q4_0]"``."""
    return f"{spec.name}[{','.join(d.name for d in key)}]"


def compact(spec: OpSpec, chosen: Collection[tuple[DType, ...]]) -> str:
    """Some of an op's keys in a few words: ``"all 10"``, or as :func:`listed` does."""
    every = keys(spec)
    is_all = len(every) > 1 and set(every) <= set(chosen)
    return f"all {len(every)}" if is_all else listed(spec, chosen)


def listed(spec: OpSpec, chosen: Collection[tuple[DType, ...]]) -> str:
    """
    Some of an op's keys: ``"f32 f16"``, ``"x: f32; w: q4_0 q8_0"``.

    Where there are several parameters, each one's dtypes are those beside the most
    usual dtypes of the others.
    """
    if len(spec.dtypes) == 1:
        return " ".join(key[0].name for key in keys(spec) if key in chosen)
    usual, parts = _usual(spec), []
    for i, (name, kinds) in enumerate(zip(spec.dtypes, _allowed(spec), strict=True)):
        names = [d.name for d in kinds if (*usual[:i], d, *usual[i + 1 :]) in chosen]
        if names:
            parts.append(f"{name}: {' '.join(names)}")
    # Combinations that full runs alone judge are told where there are few.
    rest = [",".join(d.name for d in key) for key in chosen if key not in keys(spec)]
    if rest:
        parts.append(" ".join(sorted(rest)) if len(rest) <= _FEW else f"{len(rest)} combinations")
    return "; ".join(parts)


def _allowed(spec: OpSpec) -> list[list[DType]]:
    return [[d for d in dtypes.ALL if d in kinds] for kinds in spec.dtypes.values()]


def _usual(spec: OpSpec) -> tuple[DType, ...]:
    """F32 where it may be, else blocks, which stand beside it in most files."""
    blocks = ((next((d for d in k if d.is_block), k[0]), k) for k in _allowed(spec))
    return tuple(dtypes.f32 if dtypes.f32 in k else other for other, k in blocks)
