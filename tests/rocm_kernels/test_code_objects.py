"""What is compiled ahead of time: for the right architectures, lean, and up to date."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess

import pytest

from propolis import dtypes
from propolis_rocm_hip import codeobject
from propolis_rocm_hip.modules import check_signatures
from propolis_rocm_kernels import _code
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels.ops_matmul_matrix import has_instructions


# Many constants of f64 are kept in scalar registers, some of those in vector registers: no memory
# is used, and nobody's inference computes the error function, or attention, in f64.
COLD = {
    f"unary_{op}_f64{layout}"
    for op in ("erf", "gelu_erf", "gated_gelu_erf_mul")
    for layout in ("", "_strided")
}
COLD |= {"random_normal_f64"}  # two sines, two cosines and two logarithms of f64
COLD |= {"attention_any_f64"}  # heads of any size in f64: no model has them
# What would trade IEEE, or our right to know what is in a code object, for speed.
FORBIDDEN = ("fast-math", "rdc", "unsafe-math", "finite-math", "approx", "flush-denormals")


@pytest.fixture(scope="module")
def resources(manifest):
    """What each kernel uses: module -> architecture -> kernel -> resource."""
    return json.loads(lzma.decompress((_code.CODE / "resources.json.xz").read_bytes()))


@pytest.fixture(params=list(ARCHS))
def arch(request, manifest):
    """An architecture of the wheel, where it was compiled."""
    if request.param not in manifest["archs"]:
        pytest.skip(f"{request.param} is not compiled here: `make kernels` compiles all")
    return request.param


def objects(manifest, arch):
    """Name and bytes of each code object for an architecture."""
    for name, module in manifest["modules"].items():
        yield name, _code.read_object(module["objects"][arch]["file"])


def test_every_module_is_built_from_these_sources(manifest, modules) -> None:
    """The code objects are those of all sources as they are now: none is stale or missing."""
    current = {name: _code.source_hash(module) for name, module in modules.items()}
    built = {name: module["source"] for name, module in manifest["modules"].items()}
    assert current == built
    # CI compiles one of them; wheels have all.
    assert set(ARCHS) >= set(manifest["archs"]) != set()


def test_files_are_what_the_manifest_says(manifest) -> None:
    """Each file unpacks to the bytes that were compiled, and no file is left over."""
    files = {"manifest.json", "resources.json.xz"}
    for module in manifest["modules"].values():
        assert manifest["archs"] == list(module["objects"])
        for entry in module["objects"].values():
            code = _code.read_object(entry["file"])
            assert entry["sha256"] == hashlib.sha256(code).hexdigest()
            files.add(entry["file"])
    assert files == {path.name for path in _code.CODE.iterdir()}


def test_code_is_for_the_architecture_it_claims(manifest, arch) -> None:
    """The ELF header's flags and the compiler's note both name the architecture of the file."""
    for _, code in objects(manifest, arch):
        assert arch == codeobject.arch_of(code)
        assert f"amdgcn-amd-amdhsa--{arch}" == codeobject.target_of(code)


def test_kernels_take_what_python_gives(manifest, modules, arch) -> None:
    """Each declared kernel is there, with arguments where its signature puts them, and no other."""
    assert set(manifest["modules"]) == set(modules)
    for name, code in objects(manifest, arch):
        check_signatures(code, modules[name].signatures, f"{name} for {arch}")
        assert set(modules[name].kernels) == set(codeobject.kernels(code))


def test_no_kernel_uses_scratch_or_spills(manifest, arch) -> None:
    """Kernels live in registers: no scratch memory at all, no spills but in those that are cold."""
    for _, code in objects(manifest, arch):
        kernels = codeobject.kernels(code)
        assert [] == [name for name, kernel in kernels.items() if kernel.scratch]
        assert set() == {name for name, kernel in kernels.items() if kernel.spills} - COLD
        if arch != "gfx90a":  # which has six scalar registers less
            assert set() == {name for name, k in kernels.items() if k.scalar_spills} - COLD


def test_warps_have_the_size_of_the_architecture(manifest, arch) -> None:
    """Kernels are compiled for the warp that their source was told of."""
    for _, code in objects(manifest, arch):
        assert {ARCHS[arch].warp} == {k.wavefront for k in codeobject.kernels(code).values()}


def test_the_manifest_tells_what_kernels_use(manifest, resources, arch) -> None:
    """Registers, LDS, scratch, spills and occupancy of every kernel are written down."""
    assert set(manifest["modules"]) == set(resources)
    for name, code in objects(manifest, arch):
        told = resources[name][arch]
        for kernel, found in codeobject.kernels(code).items():
            assert found.registers == told[kernel]["registers"]
            assert found.lds == told[kernel]["lds"]
            assert 1 <= told[kernel]["occupancy"] <= 16


def test_memory_bound_kernels_fill_the_machine(resources, arch) -> None:
    """The contiguous kernels of short formulas leave a SIMD room for eight warps at least."""
    for op in ("neg", "relu"):
        for dtype in ("f32", "f16", "bf16"):
            assert resources["unary"][arch][f"unary_{op}_{dtype}"]["occupancy"] >= 8


# By the beginning of an architecture's name; gfx1030 has none.
MATRIX_INSTRUCTION = {
    "gfx90a": "v_mfma_f32_16x16x16{}",
    "gfx94": "v_mfma_f32_16x16x16_{}",
    "gfx11": "v_wmma_f32_16x16x16_{}",
    "gfx12": "v_wmma_f32_16x16x16_{}",
}


# Likewise, on bytes.
BYTES_INSTRUCTION = {
    "gfx90a": "v_mfma_i32_16x16x16",
    "gfx94": "v_mfma_i32_16x16x32",
    "gfx11": "v_wmma_i32_16x16x16_iu8",
    "gfx12": "v_wmma_i32_16x16x16_iu8",
}

# Kernels of each module that are launched for matrix instructions, on AMD's GPUs.
MATRIX_KERNELS = {
    "matmul_matrix": 10,
    "attention_matrix": 10,
    "conv_matrix": 4,
    "quantized_matmul_bytes": 51,
}


def instructions(manifest, arch, module, folder) -> dict[str, str]:
    """The instructions of each kernel of a module, as they are read back."""
    if (objdump := shutil.which("llvm-objdump-19") or shutil.which("llvm-objdump")) is None:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            pytest.fail("llvm-objdump is missing: apt-get install llvm-19")
        pytest.skip("llvm-objdump is not installed")
    file = folder / "module.co"
    file.write_bytes(dict(objects(manifest, arch))[module])
    command = [objdump, "--disassemble", "--no-show-raw-insn", str(file)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(
        re.findall(rf"^\w+ <({module}_\w+)>:\n(.*?)(?:\n\n|\Z)", listing, re.MULTILINE | re.DOTALL)
    )


def loads_left(listing: str) -> list[int]:
    """Of each wait for loads: so many, the last that were asked for, need not have arrived."""
    counted = re.findall(r"s_waitcnt .*vmcnt\((\d+)\)", listing)
    gfx12 = re.findall(r"s_wait_loadcnt(_dscnt)? (0x\w+)", listing)  # of both: by 256
    return [int(n) for n in counted] + [int(n, 16) >> 8 * bool(both) for both, n in gfx12]


@pytest.mark.parametrize("module", MATRIX_KERNELS)
def test_products_are_made_of_matrix_instructions(manifest, arch, module, tmp_path) -> None:
    """Every kernel that is launched for them has them, in its own dtype."""
    known = BYTES_INSTRUCTION if module.endswith("bytes") else MATRIX_INSTRUCTION
    found = [word for start, word in known.items() if arch.startswith(start)]
    if not found:
        pytest.skip(f"{arch} has no matrix instructions, and no kernel of them is launched there")
    kernels = instructions(manifest, arch, module, tmp_path)
    # LDS has no room for some, and others are NVIDIA's.
    elsewhere = ("128x128x64", "128x192x64", "128x256x64", "matrix_pairs", "matrix_halves")
    elsewhere += "matrix_join", "conv_matrix_images", "conv_matrix_weights"  # or only copy
    elsewhere += ("bytes_round",)
    launched = [name for name in kernels if not any(word in name for word in elsewhere)]
    assert len(launched) == MATRIX_KERNELS[module]
    for name in launched:
        dtype = name.rpartition("_")[2]
        assert found[0].format(dtype) in kernels[name], name
        assert "scratch_" not in kernels[name], name


@pytest.mark.parametrize(
    "module",
    [*MATRIX_KERNELS, "matmul_few", "quantized_matmul_few", "quantized_matmul_tiles"],
)
def test_sums_of_matrix_instructions_stay_where_others_take_them(
    manifest, arch, module, tmp_path
) -> None:
    """No kernel of CDNA moves its sums to the registers for accumulation and back."""
    if not arch.startswith("gfx9"):
        pytest.skip(f"{arch} has no registers for accumulation")
    kernels = instructions(manifest, arch, module, tmp_path)
    assert any("v_mfma" in listing for listing in kernels.values())
    assert [] == [name for name, listing in kernels.items() if "v_accvgpr" in listing]


@pytest.mark.parametrize("module", ["attention", "attention_matrix", "attention_quantized"])
def test_loads_say_which_memory_they_are_of(manifest, arch, module, tmp_path) -> None:
    """No load may be of either memory: for one that may all loads of the other are waited for."""
    if module == "attention_matrix" and not has_instructions(arch, dtypes.bf16):
        pytest.skip(f"no kernel of {module} is launched on {arch}")
    kernels = instructions(manifest, arch, module, tmp_path)
    assert any("global_load" in listing for listing in kernels.values())
    assert [] == [name for name, listing in kernels.items() if "flat_load" in listing]


@pytest.mark.parametrize("module", ["quantized_matmul_bytes", "quantized_matmul_tiles"])
def test_weights_come_in_whole_packs(manifest, arch, module, tmp_path) -> None:
    """Where weights end too: who loads them byte by byte waits for each."""
    if not has_instructions(arch, dtypes.bf16):
        pytest.skip(f"no kernel of {module} is launched on {arch}")
    kernels = instructions(manifest, arch, module, tmp_path)
    assert any(re.search(r"global_load_(dwordx4|b128)", listing) for listing in kernels.values())
    bytewise = [
        name for name, listing in kernels.items() if re.search(r"global_load_u(byte|8)\b", listing)
    ]
    assert bytewise == []


def test_activations_are_asked_for_before_weights_that_come_later(manifest, arch, tmp_path) -> None:
    """
    Loads arrive in the order in which they were asked for.

    So what products of few rows wait for before they multiply is never all that is on its way: as
    often as not weights of the next 256 are.
    """
    if not has_instructions(arch, dtypes.bf16):
        pytest.skip(f"no kernel of quantized_matmul_bytes is launched on {arch}")
    kernels = instructions(manifest, arch, "quantized_matmul_bytes", tmp_path)
    products = {name: listing for name, listing in kernels.items() if "_rows" in name}
    assert products
    for name, listing in products.items():
        left = loads_left(listing)
        assert left.count(0) < len(left) / 2, name


def test_numbers_become_bf16_without_branches(manifest, arch, tmp_path) -> None:
    """NaN is chosen, not branched to, of all numbers that attention rounds in its loop."""
    kernels = instructions(manifest, arch, "attention_matrix", tmp_path)
    flash = [name for name in kernels if re.search("flash.*_bf16$", name)]
    assert flash
    for name in flash:
        branches = [
            len(re.findall("s_and_saveexec", kernels[of]))
            for of in (name, name.replace("_bf16", "_f16"))
        ]
        assert branches[0] <= branches[1] + 4, name


def test_no_flag_gives_up_ieee(manifest) -> None:
    """Neither ahead of time nor in hipRTC does a flag relax arithmetic or link at load."""
    for flag in (*manifest["flags"], *_code.LANGUAGE_FLAGS):
        assert not any(word in flag for word in FORBIDDEN), flag


def test_the_manifest_names_no_machine(manifest) -> None:
    """What is shipped says which compiler made it, not where."""
    assert "clang version" in manifest["compiler"]
    assert "/" not in json.dumps({**manifest, "modules": {}})
