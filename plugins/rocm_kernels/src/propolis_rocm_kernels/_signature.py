"""
The arguments of a kernel, declared once as a string, one letter each.

``P`` pointer, ``q`` i64, ``Q`` u64, ``i`` i32, ``I`` u32, ``f`` f32, ``d`` f64, as in
:mod:`struct`; a digit K is a ``StridedOf<K>`` of ``native/propolis_elementwise.h``, by value.
"""

from __future__ import annotations

import struct
from typing import Final


MAX_RANK: Final = 6


def expand(signature: str) -> str:
    """
    The signature in the notation of :mod:`struct`, structs as the sequence of their fields.

    >>> expand("Pq1")
    'Pq6q6Q6q6iii'
    """
    return "".join(strided(int(c)) if c.isdigit() else c for c in _checked(signature))


def strided(tensors: int) -> str:
    """The fields of a ``StridedOf<tensors>``."""
    return f"{MAX_RANK}q{MAX_RANK}Q{MAX_RANK * tensors}q{MAX_RANK}iii"


def packer(signature: str) -> struct.Struct:
    """
    What packs values into the argument buffer; a ``StridedOf`` is given as bytes.

    >>> packer("f1").size
    184
    """
    return struct.Struct(
        "".join(
            f"0q{struct.calcsize(strided(int(c)))}s" if c.isdigit() else c
            for c in _checked(signature)
        )
    )


def _checked(signature: str) -> str:
    if wrong := set(signature) - set("PqQiIfd1234"):
        msg = f"kernel signature {signature!r}: {sorted(wrong)} are none of P q Q i I f d 1 2 3 4"
        raise ValueError(msg)
    return signature
