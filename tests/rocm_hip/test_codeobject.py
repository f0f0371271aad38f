import struct

import msgpack
import pytest

from propolis_rocm_hip import codeobject
from propolis_rocm_hip.codeobject import Argument
from propolis_rocm_hip.codeobject import CodeObjectError
from propolis_rocm_hip.modules import check_signatures
from propolis_rocm_hip.modules import offsets


ARGUMENTS = [
    {".offset": 0, ".size": 8, ".value_kind": "global_buffer"},
    {".offset": 8, ".size": 56, ".value_kind": "by_value"},
    {".offset": 64, ".size": 4, ".value_kind": "by_value"},
    {".offset": 72, ".size": 4, ".value_kind": "hidden_block_count_x"},
]


def elf(arch_flags=0x41, machine=224, arguments=ARGUMENTS, metadata=None):
    """A code object as the compilers write it: header, one note section, section table."""
    kernel = {
        ".name": "k",
        ".args": arguments,
        ".vgpr_count": 5,
        ".sgpr_count": 9,
        ".group_segment_fixed_size": 64,
        ".private_segment_fixed_size": 0,
        ".vgpr_spill_count": 1,
        ".sgpr_spill_count": 2,
        ".wavefront_size": 32,
    }
    body = {"amdhsa.kernels": [kernel], "amdhsa.target": "amdgcn-amd-amdhsa--gfx1100"}
    text = msgpack.packb(body) if metadata is None else metadata
    padding = -len(text) % 4
    note = struct.pack("<III", 7, len(text), 32) + b"AMDGPU\0\0" + text + bytes(padding)
    header = b"\x7fELF\x02\x01" + bytes(10)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64, arch_flags, 64, 0, 0, 64, 2, 0)
    section = struct.pack("<IIQQQQ", 0, 7, 0, 0, 64 + 128, len(note)) + bytes(24)
    return header + bytes(64) + section + note


@pytest.mark.parametrize(
    ("flags", "arch"),
    [(0x41, "gfx1100"), (0x73F, "gfx90a"), (0x4C, "gfx942"), (0x36, "gfx1030"), (0x4E, "gfx1201")],
)
def test_the_architecture_is_in_the_flags(flags, arch):
    """The low byte; feature bits above it do not matter."""
    assert codeobject.arch_of(elf(flags)) == arch


def test_an_architecture_that_is_too_new():
    """It is named by its number, not guessed."""
    assert codeobject.arch_of(elf(0xFE)) == "an unknown AMD architecture (0xfe)"


def test_another_machine_is_not_amd():
    """What a simulator compiles is an ELF file of the host."""
    assert codeobject.arch_of(elf(machine=62)) is None


def test_the_right_code_object():
    """For the device itself, and for the generic target that covers it."""
    codeobject.check_arch(elf(0x41), "gfx1100", "unary")
    codeobject.check_arch(elf(0x54), "gfx1151", "unary")
    codeobject.check_arch(elf(machine=62), "hipsim32", "unary")


def test_the_wrong_code_object():
    """Both architectures are named, and the generic target that would do."""
    with pytest.raises(CodeObjectError) as caught:
        codeobject.check_arch(elf(0x36), "gfx1151", "unary (built for gfx1151)")
    assert str(caught.value) == (
        "unary (built for gfx1151) is for gfx1030, the device is gfx1151: build it for gfx1151 or "
        "for gfx11-generic, which covers it; an HSA_OVERRIDE_GFX_VERSION that is set hides what "
        "the device is"
    )


@pytest.mark.parametrize("arch", ["gfx90a", "hipsim32"])
def test_amd_code_never_reaches_a_device_of_another_kind(arch):
    """A simulator gets no AMD code, and a CDNA card none for RDNA."""
    with pytest.raises(CodeObjectError, match=f"is for gfx1100, the device is {arch}"):
        codeobject.check_arch(elf(0x41), arch, "unary")


def test_host_code_never_reaches_a_gpu():
    """An ELF file of another machine is refused by name."""
    with pytest.raises(CodeObjectError, match=r"another machine \(ELF machine 62\)"):
        codeobject.check_arch(elf(machine=62), "gfx1100", "unary")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "no 64-bit ELF file: its first bytes are $"),
        (b"\x7fELF\x01\x01" + bytes(60), "no 64-bit ELF file"),
        (b"\x7fELF\x02\x01", "no 64-bit ELF file"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(64), "--no-gpu-bundle-output"),
        (b"CCOB" + bytes(64), "--no-gpu-bundle-output"),
    ],
)
def test_what_is_no_code_object(image, message):
    """Its first bytes, or what it is, are in the message."""
    with pytest.raises(CodeObjectError, match=message):
        codeobject.check_arch(image, "gfx1100", "unary")


def test_kernels():
    """Explicit arguments and resources, from the metadata."""
    (kernel,) = codeobject.kernels(elf()).values()
    assert kernel.name == "k"
    assert kernel.arguments == (
        Argument(0, 8, pointer=True),
        Argument(8, 56, pointer=False),
        Argument(64, 4, pointer=False),
    )
    assert (kernel.registers, kernel.scalar_registers, kernel.lds) == (5, 9, 64)
    assert (kernel.scratch, kernel.spills, kernel.scalar_spills) == (0, 1, 2)
    assert kernel.wavefront == 32
    assert codeobject.target_of(elf()) == "amdgcn-amd-amdhsa--gfx1100"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (elf(metadata=b"\xc1"), "metadata is damaged"),
        (elf(metadata=msgpack.packb({})), "metadata is damaged: KeyError: 'amdhsa.kernels'"),
        (elf(metadata=msgpack.packb([1])), "metadata is damaged: TypeError"),
        (elf()[:150], "metadata is damaged: error"),
        (elf(machine=62), "only AMD code objects list their kernels"),
    ],
)
def test_damaged_metadata(image, message):
    """Damage is our error, whatever the decoder raises."""
    with pytest.raises(CodeObjectError, match=message):
        codeobject.kernels(image)


def test_a_file_without_metadata():
    """It says what would have it."""
    bare = bytearray(elf())
    struct.pack_into("<H", bare, 60, 0)  # no sections
    with pytest.raises(CodeObjectError, match="no metadata: AMDGPU code object V3"):
        codeobject.kernels(bytes(bare))
    with pytest.raises(CodeObjectError, match="no metadata"):
        codeobject.target_of(bytes(bare))


def test_a_signature_that_fits():
    """A struct by value is its fields, one after the other."""
    check_signatures(elf(), {"k": "P6q2ii"}, "unary")


def test_signatures_of_another_machine_are_not_known():
    """A simulator's object has no AMD metadata; the simulator checks each launch."""
    check_signatures(elf(machine=62), {"anything": "P"}, "unary")


@pytest.mark.parametrize("signature", ["P6q2i", "P6q2iq", "q6q2ii", "i6q2ii", ""])
def test_a_signature_that_does_not_fit(signature):
    """A field too many, too few, elsewhere, or a number where an address is: refused at load."""
    with pytest.raises(CodeObjectError) as caught:
        check_signatures(elf(), {"k": signature}, "unary (built for gfx1100)")
    assert "k takes address at 0, 56 bytes at 8, 4 bytes at 64" in str(caught.value)
    assert repr(signature) in str(caught.value)


def test_a_kernel_that_is_missing():
    """Named, with what to do."""
    with pytest.raises(CodeObjectError, match="unary lacks the kernel j: rebuild it"):
        check_signatures(elf(), {"j": "P"}, "unary")


def test_fields_stand_where_c_puts_them():
    """Natural alignment, as a C struct has it."""
    assert offsets("bhiqPfd") == {0: "b", 2: "h", 4: "i", 8: "q", 16: "P", 24: "f", 32: "d"}
    assert offsets("2i12qh") == {
        0: "i",
        4: "i",
        **{8 + 8 * n: "q" for n in range(12)},
        104: "h",
    }
