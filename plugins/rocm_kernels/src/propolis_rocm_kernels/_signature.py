"""
The parameters of a kernel, declared once as a string, one letter each.

``P`` pointer, ``q`` i64, ``Q`` u64, ``i`` i32, ``I`` u32, ``f`` f32, ``d`` f64, as in
:mod:`struct`; a digit K is a ``StridedOf<K>`` of ``native/propolis_elementwise.h``, by value.
Other structures that a kernel takes by value are given as a :class:`Structure`.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis_rocm_kernels._constants import MAX_RANK


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

TYPES: Final = {
    "P": "Pointer",
    "q": "i64",
    "Q": "u64",
    "i": "i32",
    "I": "u32",
    "f": "f32",
    "d": "f64",
}
"""What a letter is called in the headers."""


class Structure(NamedTuple):
    """
    What a kernel takes by value.

    Attributes:
        name: in the headers.
        fields: in order; the letter of each, with how many it has in front: ``"4q"``.
    """

    name: str
    fields: Mapping[str, str]

    @property
    def letters(self) -> str:
        """All fields in the notation of :mod:`struct`."""
        return "".join(self.fields.values())

    @property
    def starts(self) -> dict[str, int]:
        """
        Where each field begins, in bytes.

        >>> Structure("Two", {"small": "i", "large": "2q"}).starts
        {'small': 0, 'large': 8}
        """
        found, before = {}, ""
        for name, letters in self.fields.items():
            found[name] = struct.calcsize(f"{before}0{letters[-1]}")
            before += letters
        return found


Signature = str | tuple[str | Structure, ...]
"""Letters, or several of those and structures in turn."""


@cache
def strided(tensors: int) -> Structure:
    """The ``StridedOf<tensors>``."""
    return Structure(
        f"StridedOf<{tensors}>",
        {
            "shape": f"{MAX_RANK}q",
            "magic": f"{MAX_RANK}Q",
            "strides": f"{MAX_RANK * tensors}q",
            "shift": f"{MAX_RANK}i",
            "rank": "i",
            "run": "i",
        },
    )


def parameters(signature: Signature) -> Iterator[str | Structure]:
    """
    Each parameter: a letter, or a structure.

    Raises:
        ValueError: a letter is none of those.
    """
    for part in (signature,) if isinstance(signature, str) else signature:
        if isinstance(part, Structure):
            yield part
            continue
        if wrong := set(part) - {*TYPES, *"1234"}:
            msg = f"kernel signature {part!r}: {sorted(wrong)} are none of P q Q i I f d 1 2 3 4"
            raise ValueError(msg)
        yield from (strided(int(c)) if c.isdigit() else c for c in part)


def expand(signature: Signature) -> str:
    """
    The signature in the notation of :mod:`struct`, structures as the sequence of their fields.

    >>> expand("Pq1")
    'Pq6q6Q6q6iii'
    """
    return "".join(p if isinstance(p, str) else p.letters for p in parameters(signature))


def packer(signature: Signature) -> struct.Struct:
    """
    What packs values into the argument buffer: a ``StridedOf`` as bytes, others field by field.

    >>> packer("f1").size
    184
    """
    layouts = {strided(n).name for n in range(1, 5)}
    return struct.Struct(
        "".join(
            f"0q{struct.calcsize(expand((p,)))}s"
            if isinstance(p, Structure) and p.name in layouts
            else expand((p,))
            for p in parameters(signature)
        )
    )
