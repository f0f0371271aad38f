"""
SentencePiece's normalisation: the longest of many texts is replaced, wherever one stands.

The texts lie in the model as a double array, a trie in one list of 32-bit units; tails that
are alike are shared.  A unit's base is its place XOR its offset, its child for byte c unit
base XOR c, if that unit's label is c.  The root is unit 0.  Where a text ends, the unit at
the base holds where its replacement starts in the bytes behind the trie, up to a zero byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from propolis.errors import FileFormatError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_KEY = "tokenizer.ggml.precompiled_charsmap"

# Facts of a unit: bits 0 to 7 are its label (with bit 31, it is no child), bit 8 tells that a
# text ends, bit 9 that the offset in bits 10 to 30 counts 256 times; of a value all but bit
# 31 count.
_LABEL, _ENDS, _WIDE, _VALUE = 0x8000_00FF, 1 << 8, 1 << 9, 0x7FFF_FFFF
_AT_ONCE = 1 << 12  # units whose children are looked up together
_LONGEST = 64  # bytes of a text: four characters are the most that Unicode composes
_LARGEST = 256  # bytes of a replacement; Unicode's longest has 33


class Normalizer:
    """
    Replaces texts by others, the longest that stands at a place, from left to right.

    Args:
        units: The trie; without units every text stays as it is.
        texts: The replacements, a zero byte after each.

    Raises:
        ValueError: The trie leads elsewhere.
    """

    def __init__(self, units: NDArray[np.uint32], texts: bytes) -> None:
        starts = _starts(units) if len(units) else ()
        # Each is short: they may overlap, and a hostile file has many that begin in one text.
        self._replacements = {
            start: texts[start : texts.index(b"\0", start, start + _LARGEST + 1)]
            for start in starts
        }
        b"\n".join(self._replacements.values()).decode()
        self._units = units.tolist()

    def __call__(self, text: str) -> str:
        """Return the text with all replaced."""
        if not self._units:
            return text
        data = text.encode()
        output = []
        at = 0
        while at < len(data):
            end, found = self._longest(data, at)
            if found is None:
                found = data[at:end]
            output.append(found)
            at = end
        return b"".join(output).decode()

    def _longest(self, data: bytes, at: int) -> tuple[int, bytes | None]:
        """Return the end of the longest text at a place and its replacement, or of a character."""
        units = self._units
        base = units[0] >> 10 << (8 if units[0] & _WIDE else 0)
        best = None
        end = after = at
        for byte in data[at : at + _LONGEST]:
            place = base ^ byte
            if not byte or place >= len(units) or units[place] & _LABEL != byte:
                break
            unit = units[place]
            base = place ^ (unit >> 10 << (8 if unit & _WIDE else 0))
            after += 1
            if unit & _ENDS and not _continues(data, after):
                end, best = after, self._replacements[units[base] & _VALUE]
        if best is None:
            end = at + 1
            while _continues(data, end):
                end += 1
        return end, best


def _continues(data: bytes, at: int) -> bool:
    """Whether a place is within a character."""
    return at < len(data) and data[at] & 0xC0 == 0x80


def _starts(units: NDArray[np.uint32]) -> set[int]:
    """Return where replacements start, of all the texts in a trie."""
    offsets = (units >> 10).astype(np.int64) << np.where(units & _WIDE, 8, 0)
    bases = np.arange(len(units)) ^ offsets
    labels = np.arange(1, 256)
    seen = np.zeros(len(units), bool)
    starts: set[int] = set()
    waiting = [(np.zeros(1, np.int64), 0)]
    while waiting:
        some, depth = waiting.pop()
        if depth > _LONGEST:
            raise ValueError("its trie has texts of more bytes than any that is replaced")
        leaves = bases[some[(units[some] & _ENDS) != 0]]
        if (leaves >= len(units)).any():
            raise ValueError("its trie leads outside itself")
        starts.update((units[leaves] & _VALUE).tolist())
        places = bases[some][:, None] ^ labels
        inside = places < len(units)
        held = units[np.where(inside, places, 0)] & _LABEL
        found = np.unique(places[inside & (held == labels)])
        found = found[~seen[found]]
        seen[found] = True
        waiting += [(found[at : at + _AT_ONCE], depth + 1) for at in range(0, len(found), _AT_ONCE)]
    return starts


def charsmap_of(metadata: Mapping[str, object]) -> Normalizer:
    """
    Return the normalisation of a GGUF file; without one texts stay as they are.

    Raises:
        FileFormatError: It is damaged.
    """
    value = metadata.get(_KEY, [])
    if not isinstance(value, list) or not all(type(x) is int and -128 <= x < 256 for x in value):
        msg = f"{_KEY} is not a list of bytes"
        raise FileFormatError(msg)
    blob = bytes(byte & 0xFF for byte in value)
    size = int.from_bytes(blob[:4], "little")
    if blob and (size % 4 or not 4 <= size <= len(blob) - 4):
        msg = f"{_KEY} of {len(blob)} bytes names a trie of {size} bytes"
        raise FileFormatError(msg)
    try:
        return Normalizer(np.frombuffer(blob[4 : 4 + size], "<u4"), blob[4 + size :])
    except ValueError as error:  # UnicodeDecodeError is one too
        msg = f"{_KEY} cannot be used: {error}"
        raise FileFormatError(msg) from None


__all__ = ["Normalizer", "charsmap_of"]
