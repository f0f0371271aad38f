"""
What this distribution ships: code objects with their manifest, and the simulator's source.

``code/manifest.json`` says what each code object was made of and what it uses; a checkout has it
after `make ck`.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_flash_attn_ck._instances import ARGUMENTS
from propolis_flash_attn_ck._instances import Instance


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_rocm_hip.modules import ModuleSource

HERE: Final = Path(__file__).parent
NATIVE: Final = HERE / "native"
CODE: Final = HERE / "code"


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


@cache
def module_source(instance: Instance) -> ModuleSource:
    """An instance as rocm_hip loads it: code objects, and a plain kernel for the simulator."""
    # Listing our implementations must work where rocm_hip's library cannot be loaded.
    from propolis_rocm_hip.modules import ModuleSource  # noqa: PLC0415

    objects = manifest().get("instances", {}).get(instance.name, {})
    return ModuleSource(
        name=instance.name,
        signatures={instance.name: ARGUMENTS},
        code={arch: partial(read_object, entry["file"]) for arch, entry in objects.items()},
        source=lambda: _read("simulated.hip"),
        headers={"propolis_fmha.h": lambda: _read("propolis_fmha.h")},
        flags=tuple(f"-D{name}={value}" for name, value in _plain(instance).items()),
    )


def _plain(instance: Instance) -> dict[str, str | int]:
    """What the simulator's kernel is compiled with: it knows element types by number."""
    kept = {k: v for k, v in instance.defines.items() if k != "FMHA_DTYPE"}
    return {**kept, "FMHA_BF16": int(instance.dtype.name == "bf16")}


def _read(name: str) -> str:
    return (NATIVE / name).read_text(encoding="utf-8")
