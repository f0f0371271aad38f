"""
What this distribution ships: the kernels' sources, and code objects with their manifest.

``code/manifest.json`` says which code object is for which architecture and what each was made
from; ``code/resources.json.xz`` what each kernel uses.  A checkout has them after `make kernels`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from functools import cache
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_rocm_kernels import _declared


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_rocm_hip.modules import ModuleSource
    from propolis_rocm_kernels._kernels import Module

HERE: Final = Path(__file__).parent
NATIVE: Final = HERE / "native"
CODE: Final = HERE / "code"

LANGUAGE_FLAGS: Final = ("-O3", "-std=c++17", "-ffp-contract=on")
"""
What every compiler of the kernels is given.

A product and the sum it goes into may be rounded once (fma): no op promises otherwise, and
sums are the better for it.  Nothing else of IEEE is given up: never -ffast-math.
"""


def source_files(module: Module) -> dict[str, str]:
    """
    What is compiled for a module, and every header that it reaches, by file name.

    The module comes first, with what Python declares of it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    found: dict[str, str] = {}
    wanted = [f"{module.name}.hip", _declared.HEADER]
    while wanted:
        name = wanted.pop(0)
        if name not in found:
            found[name] = (NATIVE / name).read_text(encoding="utf-8")
            wanted += [
                header
                for header in re.findall(r'^#include "([^"]+)"', found[name], re.MULTILINE)
                if (NATIVE / header).exists()  # the simulator brings its own
            ]
    return {**found, f"{module.name}.hip": _declared.compiled_text(module, found)}


def source_hash(module: Module) -> str:
    """A digest of everything that a module is compiled from, flags and declarations included."""
    digest = hashlib.sha256(" ".join(LANGUAGE_FLAGS).encode())
    for name, text in sorted(source_files(module).items()):
        digest.update(f"\0{name}\0{text}".encode())
    return digest.hexdigest()


@cache
def manifest() -> Mapping[str, Any]:
    """What was compiled, or an empty mapping where nothing was."""
    try:
        loaded: Mapping[str, Any] = json.loads((CODE / "manifest.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return loaded


def archs() -> list[str]:
    """The architectures that there are code objects for."""
    return list(manifest().get("archs", ()))


def read_object(file: str) -> bytes:
    """The code object in a file of ``code/``."""
    return lzma.decompress((CODE / file).read_bytes())


def module_source(module: Module) -> ModuleSource:
    """A module as rocm_hip loads it; code objects that are older than the sources are left out."""
    # Listing our implementations must work where rocm_hip's library cannot be loaded.
    from propolis_rocm_hip.modules import ModuleSource  # noqa: PLC0415

    files = source_files(module)
    built = manifest().get("modules", {}).get(module.name, {})
    fresh = built.get("source") == source_hash(module)
    objects = built["objects"] if fresh else {}
    source = files.pop(f"{module.name}.hip")
    return ModuleSource(
        name=module.name,
        code={arch: partial(read_object, entry["file"]) for arch, entry in objects.items()},
        source=lambda: source,
        headers={name: partial(str, text) for name, text in files.items()},
        flags=LANGUAGE_FLAGS,
        signatures=module.signatures,
    )
