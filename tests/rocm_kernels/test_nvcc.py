"""The same sources for NVIDIA, where the simulator's cuda flavour runs them at full speed."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from propolis_rocm_kernels import _code
from propolis_rocm_kernels import _families


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(_families.modules()))
def test_nvcc_compiles_what_is_shipped(module, tmp_path) -> None:
    """NVIDIA's compiler takes every module and warns of nothing."""
    # What it warns of is known before it optimizes.
    compiled(module, tmp_path / "code.ptx", "-ptx", "-arch=sm_90", "-Xcicc", "-O0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "of_tile", "of_groups", "least"),
    [
        ("matmul_matrix", r"\d+x\d+x\d+_b?f16$", "x64_", 10),
        ("conv_matrix", r"\d+x\d+x\d+_b?f16$", "x64_", 10),
        ("quantized_matmul_tiles", "_rows", "_rows", 68),
    ],
)
def test_groups_of_warps_multiply(module, of_tile, of_groups, least, tmp_path) -> None:
    """
    For Hopper tiles 64 deep do, and those of weights in blocks.

    Nothing waits between their products, nor is computed there that they read: that is warned of.
    """
    hopper = ["-Xptxas", "-v", "--keep", "--keep-dir", str(tmp_path)]
    hopper.append("-gencode=arch=compute_90a,code=sm_90a")
    said = compiled(module, tmp_path / "code.cubin", "-cubin", *hopper)
    assert "serialized" not in said
    assert "injected" not in said
    [ptx] = tmp_path.glob("*.ptx")
    kernels = re.findall(
        r"^\.visible \.entry (\w+)\((.*?)^}", ptx.read_text(), re.DOTALL | re.MULTILINE
    )
    tiles = {name: body for name, body in kernels if re.search(of_tile, name)}
    assert len(tiles) >= least
    for name, body in tiles.items():
        assert ("wgmma.mma_async" in body) is (of_groups in name), name
        assert ("mma.sync" in body) is (of_groups not in name), name


def compiled(module: str, to: Path, *flags: str) -> str:
    """What nvcc says, which is an error where it warns."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc: it comes with the CUDA toolkit")
    source = to.with_name("source.cu")
    source.write_text(_code.source_files(_families.modules()[module])[f"{module}.hip"])
    more = ["-x", "cu", "-std=c++17", "-Werror", "all-warnings", "-I.", str(source), "-o", str(to)]
    done = subprocess.run(
        [nvcc, *flags, *more], cwd=_code.NATIVE, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr
