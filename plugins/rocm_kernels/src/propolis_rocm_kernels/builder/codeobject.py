"""
What a code object says of itself: its architecture, and what each kernel needs.

Layout: the ELF specification, and LLVM's "User Guide for AMDGPU Backend" (e_flags, the note
``NT_AMDGPU_METADATA``, which is MessagePack).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

import msgpack


if TYPE_CHECKING:
    from collections.abc import Iterator

EM_AMDGPU: Final = 224
PT_NOTE: Final = 4
NT_AMDGPU_METADATA: Final = 32

# EF_AMDGPU_MACH, the low byte of e_flags.
MACHS: Final = {
    0x36: "gfx1030",
    0x3F: "gfx90a",
    0x41: "gfx1100",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x48: "gfx1200",
    0x4A: "gfx1151",
    0x4C: "gfx942",
    0x4E: "gfx1201",
}


class Argument(NamedTuple):
    """Where an argument lies in the kernel's argument buffer, in bytes."""

    offset: int
    size: int


class Kernel(NamedTuple):
    """
    A kernel's needs.

    Attributes:
        arguments: place and size of each argument that the caller gives.
        vgprs: vector registers a thread, accumulation registers included.
        sgprs: scalar registers a warp.
        lds: bytes of static shared memory a block.
        scratch: bytes of memory a thread, for what registers do not hold.
        vgpr_spills: vector registers moved to scratch.
        sgpr_spills: scalar registers moved into vector registers.
        warp: threads of a warp.
    """

    arguments: tuple[Argument, ...]
    vgprs: int
    sgprs: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    warp: int


def arch(code: bytes) -> str:
    """
    The architecture that a code object is for.

    Raises:
        ValueError: it is no AMD code object, or of an architecture that we do not know.
    """
    if code[:4] != b"\x7fELF" or struct.unpack_from("<H", code, 18)[0] != EM_AMDGPU:
        msg = "no AMD code object"
        raise ValueError(msg)
    (flags,) = struct.unpack_from("<I", code, 48)
    if flags & 0xFF not in MACHS:
        msg = f"a code object for the architecture number {flags & 0xFF:#x}, unknown here"
        raise ValueError(msg)
    return MACHS[flags & 0xFF]


def kernels(code: bytes) -> dict[str, Kernel]:
    """Each kernel of a code object, by name."""
    found = {}
    for one in _metadata(code)["amdhsa.kernels"]:
        arguments = tuple(
            Argument(a[".offset"], a[".size"])
            for a in one[".args"]
            if not a[".value_kind"].startswith("hidden")
        )
        found[one[".name"]] = Kernel(
            arguments,
            vgprs=one[".vgpr_count"],
            sgprs=one[".sgpr_count"],
            lds=one[".group_segment_fixed_size"],
            scratch=one[".private_segment_fixed_size"],
            vgpr_spills=one[".vgpr_spill_count"],
            sgpr_spills=one[".sgpr_spill_count"],
            warp=one[".wavefront_size"],
        )
    return found


def _metadata(code: bytes) -> Any:
    for owner, kind, content in _notes(code):
        if (owner, kind) == (b"AMDGPU", NT_AMDGPU_METADATA):
            return msgpack.unpackb(content)
    msg = "the code object has no metadata"
    raise ValueError(msg)


def _notes(code: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Owner, type and content of each note in the program's note segments."""
    (table,) = struct.unpack_from("<Q", code, 32)
    size, count = struct.unpack_from("<HH", code, 54)
    for i in range(count):
        kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", code, table + i * size)
        at = start
        while kind == PT_NOTE and at < start + length:
            owner, content, number = struct.unpack_from("<III", code, at)
            name = code[at + 12 : at + 12 + owner].rstrip(b"\0")
            at += 12 + owner + -owner % 4
            yield name, number, code[at : at + content]
            at += content + -content % 4
