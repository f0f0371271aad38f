"""hipRTC for real: the sources that are shipped compile where the wheel has no code object."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path
from zlib import crc32

import pytest

from propolis_rocm_hip import codeobject
from propolis_rocm_hip import rtc
from propolis_rocm_hip.modules import check_signatures
from propolis_rocm_kernels import _families
from propolis_rocm_kernels._archs import ARCHS


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A ROCm tree around the system's library; Debian's has hipRTC in the HIP library itself."""
    name = ctypes.util.find_library("amdhip64")
    if name is None:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            pytest.fail("libamdhip64 is missing: apt-get install libamdhip64-5")
        pytest.skip("no ROCm library is installed")
    folder = tmp_path / "rocm" / "lib"
    folder.mkdir(parents=True)
    library = next(Path("/usr/lib").rglob(name))
    for stem in ("amdhip64", "hiprtc"):
        (folder / f"lib{stem}.so").symlink_to(library)
    monkeypatch.setenv("ROCM_PATH", str(folder.parent))


# Every module for one of two architectures, CDNA and RDNA, which other modules do not change. CI
# takes half of them, by lot.
LOT = os.environ.get("CI_LOT")
TARGETS = [
    (module, ("gfx90a", "gfx1030")[crc32(module.encode()) % 2])
    for number, module in enumerate(sorted(_families.modules()))
    if LOT is None or number % 2 == int(LOT) % 2
]

# The compiler of ROCm 5 gives a thread of a block of 1024 on RDNA 64 registers, half of what there
# are: 16 to 64 bytes of a row's elements, or blocks, do not stay in them.
CROWDED = {
    f"norm_{op}_{dtype}_wide"
    for op, dtype in (
        ("layer_norm", "f32"),
        ("layer_norm", "f64"),
        ("layer_norm", "f8e5m2"),
        ("add_rms_norm", "f64"),
        ("add_rms_norm", "f8e4m3"),
        ("rms_norm", "f8e4m3"),
    )
}

CROWDED |= {f"normed_quantized_rope_{w}" for w in ("q3_k", "q4_k", "q5_k", "q6_k")}
CROWDED |= {f"quantized_matmul_rows_{rows}_q5_k" for rows in (2, 4)}
CROWDED |= set(_families.modules()["quantized_matmul_one"].kernels)

# On CDNA it leaves two packs of 16-bit elements in memory, 32 bytes a thread.
CROWDED |= {
    f"rope_{pairs}_{dtype}_{position}"
    for pairs in ("half", "interleaved")
    for dtype in ("f16", "bf16")
    for position in ("i32", "i64")
}

# Nor does a square of bytes that is turned stay in registers there.
CROWDED |= {f"fill_copy_b{size}_turned" for size in (1, 2)}

# There operands of matrix instructions go through memory too; not in what `make kernels` ships.
for _module in ("attention_matrix", "matmul_matrix", "quantized_matmul_tiles"):
    CROWDED |= set(_families.modules()[_module].kernels)


@pytest.mark.slow
@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize(("module", "arch"), TARGETS)
def test_hiprtc_compiles_what_is_shipped(modules, module, arch) -> None:
    """ROCm's own hipRTC, which has no headers, makes every kernel that Python declares."""
    shipped = modules[module].source
    program = rtc.Program(
        name=module,
        source=shipped.source(),
        headers={name: read() for name, read in shipped.headers.items()},
        flags=(*shipped.flags, f"-DPROPOLIS_WARP={ARCHS[arch].warp}"),
        arch=arch,
    )
    image = rtc.compile_program(program)
    assert arch == codeobject.arch_of(image)
    check_signatures(image, shipped.signatures, module)
    scratch = {name for name, kernel in codeobject.kernels(image).items() if kernel.scratch}
    assert set() == scratch - CROWDED
