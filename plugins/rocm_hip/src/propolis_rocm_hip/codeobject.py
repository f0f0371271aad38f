"""
What a code object says of itself: the architecture it is for, its kernels' arguments.

AMD's code objects are ELF files.  The architecture stands in the header's flags, the
kernels in a MessagePack note; LLVM's "User Guide for AMDGPU Backend" documents both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import msgpack
import rocm_bootstrap

from propolis.errors import DeviceError


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

EM_AMDGPU: Final = 224
_NT_AMDGPU_METADATA: Final = 32
_SHT_NOTE: Final = 7
_BUNDLES: Final = (b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")

# EF_AMDGPU_MACH_*, the low byte of e_flags.
_MACHINES: Final = {
    0x2C: "gfx900",
    0x2D: "gfx902",
    0x2E: "gfx904",
    0x2F: "gfx906",
    0x30: "gfx908",
    0x31: "gfx909",
    0x32: "gfx90c",
    0x33: "gfx1010",
    0x34: "gfx1011",
    0x35: "gfx1012",
    0x36: "gfx1030",
    0x37: "gfx1031",
    0x38: "gfx1032",
    0x39: "gfx1033",
    0x3D: "gfx1035",
    0x3E: "gfx1034",
    0x3F: "gfx90a",
    0x41: "gfx1100",
    0x42: "gfx1013",
    0x43: "gfx1150",
    0x44: "gfx1103",
    0x45: "gfx1036",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x48: "gfx1200",
    0x4A: "gfx1151",
    0x4C: "gfx942",
    0x4E: "gfx1201",
    0x4F: "gfx950",
    0x51: "gfx9-generic",
    0x52: "gfx10-1-generic",
    0x53: "gfx10-3-generic",
    0x54: "gfx11-generic",
    0x55: "gfx1152",
    0x58: "gfx1153",
    0x59: "gfx12-generic",
    0x5F: "gfx9-4-generic",
}

_VALUE: Final = "by_value"
_POINTERS: Final = frozenset({"global_buffer", "dynamic_shared_pointer"})


class CodeObjectError(DeviceError):
    """A code object cannot be used: it is damaged, or for another architecture."""


@dataclass(frozen=True, slots=True)
class Argument:
    """
    One explicit argument of a kernel.

    Attributes:
        offset: where it stands in the argument buffer, in bytes.
        size: its bytes.
        pointer: whether it is an address on the device.
    """

    offset: int
    size: int
    pointer: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """
    What the compiler says of a kernel.

    Attributes:
        name: as it is looked up.
        arguments: those that the launch gives; hidden ones are the runtime's.
        registers: vector registers a lane uses.
        scalar_registers: scalar registers a wave uses.
        lds: bytes of static LDS a block uses.
        scratch: bytes of scratch memory a lane uses.
        spills: vector registers that did not fit.
        wavefront: lanes of a wave.
        scalar_spills: scalar registers that did not fit, and lie in lanes of vector ones.
    """

    name: str
    arguments: tuple[Argument, ...]
    registers: int
    scalar_registers: int
    lds: int
    scratch: int
    spills: int
    wavefront: int
    scalar_spills: int = 0


def base_arch(name: str) -> str:
    """
    An architecture without its feature suffixes.

    >>> base_arch("gfx90a:sramecc+:xnack-")
    'gfx90a'
    """
    return name.partition(":")[0]


_ALONE: Final = {"gfx908", "gfx90a"}
"""Of the gfx9 family, which LLVM's gfx9-generic does not cover (its user guide for AMDGPU)."""


def generic_of(arch: str) -> str | None:
    """
    LLVM's generic target that covers an architecture; None where there is none.

    >>> generic_of("gfx1151")
    'gfx11-generic'
    >>> generic_of("gfx1030")
    'gfx10-3-generic'
    >>> generic_of("gfx90a")
    """
    if arch in _ALONE:
        return None
    try:
        chain = rocm_bootstrap.packaging_chain(arch)
    except ValueError:  # not an AMD architecture, or one newer than the package
        return None
    return next((bundle.llvm_generic for bundle in chain if bundle.llvm_generic), None)


def machine(image: bytes) -> tuple[int, int]:
    """
    The machine and the flags of an ELF header.

    Raises:
        CodeObjectError: the bytes are not a 64-bit little-endian ELF file.
    """
    if image.startswith(_BUNDLES):
        raise CodeObjectError(
            "the code object is an offload bundle: compile it with --no-gpu-bundle-output, one "
            "file for each architecture"
        )
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64:
        msg = f"the code object is no 64-bit ELF file: its first bytes are {image[:8].hex()}"
        raise CodeObjectError(msg)
    (kind,) = struct.unpack_from("<H", image, 18)
    (flags,) = struct.unpack_from("<I", image, 48)
    return kind, flags


def arch_of(image: bytes) -> str | None:
    """
    The architecture that a code object is for; None for an ELF file of another machine.

    >>> arch_of(b"what?")
    Traceback (most recent call last):
    propolis_rocm_hip.codeobject.CodeObjectError: the code object is no 64-bit ELF file...

    Raises:
        CodeObjectError: it is no ELF file.
    """
    kind, flags = machine(image)
    if kind != EM_AMDGPU:
        return None
    return _MACHINES.get(flags & 0xFF, f"an unknown AMD architecture ({flags & 0xFF:#x})")


def check_arch(image: bytes, arch: str, what: str) -> None:
    """
    Check that a code object may be loaded on a device.

    Args:
        image: the code object.
        arch: the device's architecture.  One that is not AMD's (a simulator's) is
            matched by name alone: whoever keeps the object says what it was built for.
        what: names the object in the message.

    Raises:
        CodeObjectError: it is for another one; names both, and the generic target that
            would cover the device.
    """
    found = arch_of(image)
    amd = arch.startswith("gfx")
    if found is None and not amd:
        return
    if found == arch or (found is not None and found == generic_of(arch)):
        return
    generic = generic_of(arch)
    nearest = f" or for {generic}, which covers it" if generic else ""
    is_for = found or f"another machine (ELF machine {machine(image)[0]})"
    msg = (
        f"{what} is for {is_for}, the device is {arch}: build it for {arch}{nearest}; an "
        f"HSA_OVERRIDE_GFX_VERSION that is set hides what the device is"
    )
    raise CodeObjectError(msg)


def kernels(image: bytes) -> dict[str, Kernel]:
    """
    The kernels of an AMD code object, by name.

    Raises:
        CodeObjectError: the bytes are damaged, or no AMD code object.
    """
    if machine(image)[0] != EM_AMDGPU:
        raise CodeObjectError("only AMD code objects list their kernels")
    try:
        for note in _metadata(image):
            return {k[".name"]: _kernel(k) for k in note["amdhsa.kernels"]}
    except (struct.error, KeyError, ValueError, TypeError, msgpack.UnpackException) as exc:
        msg = f"the code object's metadata is damaged: {type(exc).__name__}: {exc}"
        raise CodeObjectError(msg) from exc
    raise CodeObjectError("the code object has no metadata: AMDGPU code object V3 or newer does")


def target_of(image: bytes) -> str:
    """
    The target that the metadata names, ``"amdgcn-amd-amdhsa--gfx1100"``.

    Raises:
        CodeObjectError: there is none.
    """
    for note in _metadata(image):
        return str(note.get("amdhsa.target", ""))
    raise CodeObjectError("the code object has no metadata")


def _kernel(record: dict[str, Any]) -> Kernel:
    arguments = tuple(
        Argument(a[".offset"], a[".size"], a[".value_kind"] in _POINTERS)
        for a in record.get(".args", ())
        if a[".value_kind"] == _VALUE or a[".value_kind"] in _POINTERS
    )
    return Kernel(
        name=record[".name"],
        arguments=arguments,
        registers=record[".vgpr_count"],
        scalar_registers=record[".sgpr_count"],
        lds=record[".group_segment_fixed_size"],
        scratch=record[".private_segment_fixed_size"],
        spills=record.get(".vgpr_spill_count", 0),
        wavefront=record[".wavefront_size"],
        scalar_spills=record.get(".sgpr_spill_count", 0),
    )


def _metadata(image: bytes) -> Iterator[dict[str, Any]]:
    """The AMDGPU metadata notes, decoded."""
    for start, size in _note_sections(image):
        position, end = start, start + size
        while position + 12 <= end:
            name_size, body_size, kind = struct.unpack_from("<III", image, position)
            body = position + 12 + _aligned(name_size)
            if kind == _NT_AMDGPU_METADATA:
                yield msgpack.unpackb(image[body : body + body_size], strict_map_key=False)
            position = body + _aligned(body_size)


def _note_sections(image: bytes) -> Iterable[tuple[int, int]]:
    """Offset and size of each note section."""
    (table,) = struct.unpack_from("<Q", image, 40)
    entry, count = struct.unpack_from("<HH", image, 58)
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQ", image, table + number * entry)
        if fields[1] == _SHT_NOTE:
            yield fields[4], fields[5]


def _aligned(size: int) -> int:
    return (size + 3) & ~3


__all__ = [
    "Argument",
    "CodeObjectError",
    "Kernel",
    "arch_of",
    "base_arch",
    "check_arch",
    "generic_of",
    "kernels",
    "target_of",
]
