"""Compiling: one code object for each instance and architecture, only where something changed."""

from __future__ import annotations

import hashlib
import json
import lzma
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.files import replace_text
from propolis.files import replacing
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARGUMENTS
from propolis_flash_attn_ck.builder.headers import DIGEST
from propolis_rocm_hip import codeobject
from propolis_rocm_hip.modules import check_signatures
from propolis_rocm_kernels.builder.toolchain import ToolchainError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis_flash_attn_ck._instances import Instance
    from propolis_rocm_kernels.builder.toolchain import Toolchain

# As Composable Kernel is compiled by others, but for what costs half an hour and gains nothing here
# (-mllvm -amdgpu-early-inline-all).
FLAGS: Final = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output"),
    *("-std=c++17", "-O3", "-fgpu-flush-denormals-to-zero"),
    *("-mcode-object-version=5", "-fuse-cuid=none", "-nogpuinc", "-fms-extensions"),
    # Fused with their scaling, large scores less the largest are not 0 but its rounding: NaN.
    "-ffp-contract=off",
    "-Wno-everything",  # in headers that are not ours
    "-DCK_TILE_USE_BUFFER_ADDRESSING_BUILTIN=1",  # else loops over lanes, and scratch
    "-DCK_TILE_FMHA_FWD_FAST_EXP2=1",
    "-DCK_TILE_FLOAT_TO_BFLOAT16_DEFAULT=3",
)
SOURCES: Final = ("fmha.hip", "fmha_instance.h", "propolis_fmha.h")


def build(
    toolchain: Toolchain,
    headers: Path,
    instances: Sequence[Instance],
    archs: Sequence[str],
    jobs: int,
    report: Callable[[str], None],
) -> None:
    """
    Compile what is not up to date, and write the manifest.

    Args:
        toolchain: with what.
        headers: the folder of ``ck_tile/``.
        instances: what is to be compiled.
        archs: for which architectures.
        jobs: how many compilers may run at a time.
        report: told each file that was compiled.

    Raises:
        ToolchainError: the compiler refused one, or made one that Python cannot launch.
    """
    _code.CODE.mkdir(exist_ok=True)
    old = _code.manifest().get("instances", {})
    text = "\0".join((_code.NATIVE / name).read_text("utf-8") for name in SOURCES)
    shim = "\0".join(p.read_text("utf-8") for p in sorted((_code.NATIVE / "shim/hip").glob("*.h")))
    done: dict[str, dict[str, Any]] = {instance.name: {} for instance in instances}

    def one(pair: tuple[Instance, str]) -> None:
        instance, arch = pair
        made_of = [text, shim, DIGEST, toolchain.version, arch, *FLAGS, repr(instance.defines)]
        key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
        entry = old.get(instance.name, {}).get(arch)
        if entry is None or entry["key"] != key or not (_code.CODE / entry["file"]).exists():
            code = compile_instance(toolchain, headers, instance, arch)
            packed = lzma.compress(code, preset=9 | lzma.PRESET_EXTREME)
            file = f"{instance.name}-{arch}.co.xz"
            with replacing(_code.CODE / file) as part:
                part.write(packed)
            kernel = codeobject.kernels(code)[instance.name]
            used = {k: v for k, v in asdict(kernel).items() if k not in ("name", "arguments")}
            digest = hashlib.sha256(code).hexdigest()
            entry = {"key": key, "file": file, "size": len(packed), "sha256": digest, "uses": used}
            report(f"{instance.name} for {arch}: {len(code)} bytes, {entry['size']} packed")
        done[instance.name][arch] = entry

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [(i, a) for i in instances for a in archs]))
    manifest = {
        "compiler": toolchain.version,
        "flags": list(FLAGS),
        "headers": DIGEST,
        "archs": list(archs),
        "instances": {name: {arch: table[arch] for arch in archs} for name, table in done.items()},
    }
    listing = json.dumps(manifest, indent=1) + "\n"
    replace_text(_code.CODE / "manifest.json", listing, private=False)
    _code.manifest.cache_clear()
    files = {entry["file"] for table in done.values() for entry in table.values()}
    for left_over in set(_code.CODE.glob("*.co.xz")) - {_code.CODE / f for f in files}:
        left_over.unlink()


def compile_instance(toolchain: Toolchain, headers: Path, instance: Instance, arch: str) -> bytes:
    """
    The code object of an instance.

    Raises:
        ToolchainError: the compiler refused it, or its kernel takes other arguments.
    """
    wrappers = Path(_resources(toolchain.clang)) / "include/cuda_wrappers"
    where: list[str] = []
    if toolchain.libraries is not None:
        where = ["--rocm-path=/usr", f"--rocm-device-lib-path={toolchain.libraries}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "code.co"
        command = [
            *(toolchain.clang, *FLAGS, f"--offload-arch={arch}", *where),
            *("-isystem", str(wrappers), "-include", "__clang_hip_runtime_wrapper.h"),
            *(f"-I{folder}" for folder in (_code.NATIVE, _code.NATIVE / "shim", headers)),
            *(f"-D{name}={value}" for name, value in instance.defines.items()),
            *(str(_code.NATIVE / "fmha.hip"), "-o", str(out)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{instance.name} for {arch}: {toolchain.clang} refused it:\n{done.stderr}"
            raise ToolchainError(msg)
        code = out.read_bytes()
    check_signatures(code, {instance.name: ARGUMENTS}, f"{instance.name} for {arch}")
    return code


def _resources(clang: str) -> str:
    """The folder of the compiler's own headers."""
    done = subprocess.run(
        [clang, "-print-resource-dir"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
