"""The compiler: where it is, and what it lacks for the newest architectures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from propolis.errors import PropolisError
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels._code import LANGUAGE_FLAGS


OLDEST_CLANG: Final = 19

DEVICE_FLAGS: Final = (
    "-x",
    "hip",
    "--cuda-device-only",
    "--no-gpu-bundle-output",
    "-nogpuinc",  # the header needs no other: half the time
    "-mcode-object-version=5",  # ROCm 6 and newer load it
    "-fuse-cuid=none",  # the same bytes wherever the sources lie
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Rpass-analysis=kernel-resource-usage",
)


class ToolchainError(PropolisError):
    """There is no compiler that can build the kernels, or it refused them."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """
    A clang that compiles HIP.

    Attributes:
        clang: the program.
        version: what it says of itself, in one line.
        libraries: the folder of device libraries; None where the compiler has its own.
    """

    clang: str
    version: str
    libraries: Path | None

    def flags(self, arch: str) -> list[str]:
        """All flags but the files."""
        warp = f"-DPROPOLIS_WARP={ARCHS[arch].warp}"
        where = []
        if self.libraries is not None:
            where = ["--rocm-path=/usr", f"--rocm-device-lib-path={self.libraries}"]
        return [*DEVICE_FLAGS, *LANGUAGE_FLAGS, f"--offload-arch={arch}", warp, *where]


def find(scratch: Path) -> Toolchain:
    """
    The first compiler that will do: in ``$HIP_CLANG_PATH``, ROCm's, the system's newest.

    Args:
        scratch: a folder for the device libraries that have to be made.

    Raises:
        ToolchainError: there is none; says what to install.
    """
    refused = []
    for clang in _candidates():
        version = _version(clang)
        if version is None:
            refused.append(f"{clang} is no clang")
        elif version[0] < OLDEST_CLANG:
            refused.append(f"{clang} is clang {version[0]}")
        elif _has_libraries(clang):
            return Toolchain(clang, version[1], None)
        elif (system := _system_libraries()) is None:
            refused.append(f"{clang} has no device libraries, nor has the system")
        else:
            return Toolchain(clang, version[1], _complete(clang, system, scratch))
    msg = (
        f"no compiler for the kernels: {'; '.join(refused) or 'no clang was found'}; install ROCm "
        f"6.3 or newer, or (Debian, Ubuntu) clang-19, lld-19 and rocm-device-libs, or name the "
        f"folder of a clang++ in HIP_CLANG_PATH"
    )
    raise ToolchainError(msg)


def _candidates() -> list[str]:
    if given := os.environ.get("HIP_CLANG_PATH"):  # hipcc knows it too
        return [str(Path(given) / "clang++")]
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    own = [rocm / "llvm/bin/clang++", rocm / "lib/llvm/bin/clang++"]
    names = [f"clang++-{n}" for n in range(25, OLDEST_CLANG - 1, -1)]
    found = (shutil.which(name) for name in ("amdclang++", *names, "clang++"))
    return [str(p) for p in own if p.exists()] + [name for name in found if name]


def _version(clang: str) -> tuple[int, str] | None:
    try:
        said = _run([clang, "--version"]).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"clang version (\d+).*", said)
    return (int(match[1]), match[0]) if match else None


def _has_libraries(clang: str) -> bool:
    """Whether it finds libraries for the newest architecture by itself."""
    newest = list(ARCHS)[-1]
    empty = ["-x", "hip", "-nogpuinc", "--cuda-device-only", f"--offload-arch={newest}"]
    done = subprocess.run(
        [clang, *empty, "-###", "-c", os.devnull], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and "error:" not in done.stderr


def _system_libraries() -> Path | None:
    found = [*Path("/usr/lib").glob("*/amdgcn/bitcode"), Path("/usr/lib/amdgcn/bitcode")]
    return next((folder for folder in found if (folder / "ocml.bc").exists()), None)


def _complete(clang: str, system: Path, scratch: Path) -> Path:
    """
    A folder with the system's device libraries and what they lack.

    The libraries ask one constant, the number of the architecture, what it can do, and older
    releases have no file with the number of newer architectures.  We make it of a file that
    they have.
    """
    folder = scratch / "device-libs"
    folder.mkdir(parents=True, exist_ok=True)
    for file in system.glob("*.bc"):
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file)
    wanted = {
        f"oclc_isa_version_{arch[3:]}.bc": (a.isa, "isa_version_1030", 10300)
        for arch, a in ARCHS.items()
    }
    wanted["oclc_abi_version_500.bc"] = (500, "abi_version_400", 400)
    for name, (value, like, number) in wanted.items():
        if (folder / name).exists():
            continue
        as_ir = [clang, "-x", "ir", "--target=amdgcn-amd-amdhsa", "-nogpulib", "-emit-llvm"]
        text = _run([*as_ir, "-S", f"{folder}/oclc_{like}.bc", "-o", "-"]).stdout
        made, count = re.subn(rf"\bi32 {number}\b", f"i32 {value}", text)
        if count != 1:
            msg = f"the device libraries in {system} are of an unknown make: {like} is not {number}"
            raise ToolchainError(msg)
        # Another process may be doing the same: the file appears whole or not at all.
        part = folder / f".{name}.{os.getpid()}"
        subprocess.run(
            [*as_ir, "-c", "-", "-o", str(part)],
            input=made,
            text=True,
            check=True,
            capture_output=True,
        )
        part.replace(folder / name)
    return folder


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)
