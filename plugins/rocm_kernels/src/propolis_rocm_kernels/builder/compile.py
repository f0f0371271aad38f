"""Compiling: one code object for each module and architecture, only where something changed."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from propolis_rocm_hip import codeobject
from propolis_rocm_kernels import _code
from propolis_rocm_kernels.builder.toolchain import ToolchainError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis_rocm_kernels._kernels import Module
    from propolis_rocm_kernels.builder.toolchain import Toolchain


def build(
    toolchain: Toolchain,
    modules: Sequence[Module],
    archs: Sequence[str],
    jobs: int,
    report: Callable[[str], None],
) -> None:
    """
    Compile what is not up to date, and write the manifest.

    Args:
        toolchain: with what.
        modules: what Python declares of each ``native/*.hip``.
        archs: for which architectures.
        jobs: how many compilers may run at a time.
        report: told each file that was compiled.

    Raises:
        ToolchainError: the compiler refused one, with the compiler's message, or it has kernels
            that Python does not declare.
    """
    _code.CODE.mkdir(exist_ok=True)
    old = _load(_code.CODE / "manifest.json").get("modules", {})
    known = _load(_code.CODE / "resources.json.xz")
    names = [module.name for module in modules]
    done: dict[str, Any] = {
        m.name: {"source": _code.source_hash(m), "objects": {}} for m in modules
    }
    resources: dict[str, Any] = {name: {} for name in names}

    def one(module: Module, arch: str) -> None:
        name = module.name
        flags = _portable(toolchain.flags(arch))
        made_of = [done[name]["source"], toolchain.version, *flags]
        key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
        entry = old.get(name, {}).get("objects", {}).get(arch)
        if entry is None or entry["key"] != key or not _intact(entry):
            code, used = _compile(toolchain, module, arch)
            entry = {"key": key, **_store(code, f"{name}-{arch}.co.xz")}
            report(f"{name} for {arch}: {len(code)} bytes, {entry['size']} packed")
        else:
            used = known[name][arch]
        done[name]["objects"][arch] = entry
        resources[name][arch] = used

    with ThreadPoolExecutor(jobs) as pool:
        # Long ones first would be better still; all are alike.
        list(pool.map(lambda pair: one(*pair), [(m, a) for m in modules for a in archs]))
    for table in (*(done[name]["objects"] for name in names), *resources.values()):
        _sort(table, archs)
    manifest = {
        "compiler": toolchain.version,
        "flags": _portable(toolchain.flags(archs[0])),
        "archs": list(archs),
        "modules": done,
    }
    packed = lzma.compress(json.dumps(resources, separators=(",", ":")).encode(), preset=9)
    _write(_code.CODE / "resources.json.xz", packed)
    _write(_code.CODE / "manifest.json", json.dumps(manifest, indent=1).encode() + b"\n")
    _code.manifest.cache_clear()
    files = {e["file"] for m in done.values() for e in m["objects"].values()}
    for left_over in set(_code.CODE.glob("*.co.xz")) - {_code.CODE / f for f in files}:
        left_over.unlink()


def _compile(toolchain: Toolchain, module: Module, arch: str) -> tuple[bytes, dict[str, Any]]:
    """The code object, and what each kernel uses."""
    name = module.name
    text = _code.source_files(module)[f"{name}.hip"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "code.co"
        command = [toolchain.clang, *toolchain.flags(arch), "-", "-o", str(out)]
        done = subprocess.run(
            command, cwd=_code.NATIVE, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "-Rpass-analysis" not in line]
            msg = f"{name} does not compile for {arch}:\n" + "\n".join(errors[-40:])
            raise ToolchainError(msg)
        code = out.read_bytes()
    if (found := codeobject.arch_of(code)) != arch:
        msg = f"{name}: the compiler made a code object for {found}, not for {arch}"
        raise ToolchainError(msg)
    kernels = codeobject.kernels(code)
    if unknown := sorted(set(kernels) - set(module.kernels)):
        msg = f"{name}.hip has kernels that ops_{name}.py does not declare: {', '.join(unknown)}"
        raise ToolchainError(msg)
    occupancy = _occupancy(done.stderr)
    return code, {k: {**asdict(kernels[k]), "occupancy": occupancy[k]} for k in kernels}


def _occupancy(remarks: str) -> dict[str, int]:
    """Warps that a SIMD can hold of each kernel, as the compiler remarks."""
    found = re.findall(
        r"Function Name: (\w+).*?Occupancy \[waves/SIMD\]: (\d+)", remarks, re.DOTALL
    )
    return {name: int(warps) for name, warps in found}


def _store(code: bytes, file: str) -> dict[str, Any]:
    # LZMA has no equal in Python's library: half the size that zlib gives, at 15 ms to unpack.
    packed = lzma.compress(code, preset=9 | lzma.PRESET_EXTREME)
    _write(_code.CODE / file, packed)
    return {"file": file, "size": len(packed), "sha256": hashlib.sha256(code).hexdigest()}


def _intact(entry: dict[str, str]) -> bool:
    try:
        code = _code.read_object(entry["file"])
    except (OSError, lzma.LZMAError):
        return False
    return entry["sha256"] == hashlib.sha256(code).hexdigest()


def _portable(flags: list[str]) -> list[str]:
    """Flags without the paths of this machine."""
    return [flag for flag in flags if not flag.startswith(("--rocm-", "-DPROPOLIS", "--offload"))]


def _sort(table: dict[str, Any], archs: Sequence[str]) -> None:
    for arch in archs:
        table[arch] = table.pop(arch)


def _load(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(lzma.decompress(raw) if path.suffix == ".xz" else raw)
    except (OSError, ValueError, lzma.LZMAError):
        return {}  # nothing there, or half a file: everything is compiled anew


def _write(path: Path, content: bytes) -> None:
    """A file appears whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
