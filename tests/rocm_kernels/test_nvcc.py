"""The same sources for NVIDIA, where the simulator's cuda flavour runs them at full speed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from propolis_rocm_kernels import _code
from propolis_rocm_kernels import _families


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(_families.modules()))
def test_nvcc_compiles_what_is_shipped(module, tmp_path) -> None:
    """NVIDIA's compiler takes every module and warns of nothing."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc: it comes with the CUDA toolkit")
    flags = ["-x", "cu", "-ptx", "-arch=sm_90", "-std=c++17", "-Werror", "all-warnings"]
    flags += ["-Xcicc", "-O0"]  # what it warns of is known before it optimizes
    source = tmp_path / "source.cu"
    source.write_text(_code.source_files(_families.modules()[module])[f"{module}.hip"])
    command = [nvcc, *flags, "-I.", str(source), "-o", str(tmp_path / "code.ptx")]
    done = subprocess.run(command, cwd=_code.NATIVE, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
