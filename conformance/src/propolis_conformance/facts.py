"""
What decides how a plugin behaved, and nothing of who ran it.

Reports are published, so no name of a host or a user and no folder gets into one: what
plugins say is cleaned of them, and a kernel is named by its number alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Iterable

# What changes how libraries compute, besides the files themselves.
_ENVIRONMENT = ("HSA_OVERRIDE_GFX_VERSION", "OPENBLAS_CORETYPE")
_PART = r"/[^\s/:;,'\"()<>]+"
_PATH = re.compile(rf"(?<![\w.])(?:~(?:{_PART})+|(?:{_PART}){{2,}})")


def without_places(text: str) -> str:
    """The text without folders, and without the name of this host."""
    home = str(Path.home())
    if len(home) > 1:
        text = text.replace(home, "~")
    text = _PATH.sub(lambda found: f".../{found[0].rpartition('/')[2]}", text)
    for name in {platform.node(), platform.node().partition(".")[0]}:
        if len(name) > 3 and name != "localhost":
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<host>", text)
    return text


def host() -> dict[str, str]:
    """Python, the operating system and the kernel's GPU driver, where there is one."""
    number = re.match(r"[\d.]*", platform.release())
    library = " ".join(filter(None, platform.libc_ver()))
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {number[0] if number else ''}".strip(),
        "machine": platform.machine(),
    }
    if library:
        found["libc"] = library
    found |= {name: os.environ[name] for name in _ENVIRONMENT if os.environ.get(name)}
    return found | _read("amdgpu", Path("/sys/module/amdgpu/version"))


def libraries(distributions: Iterable[str], files: Iterable[str]) -> dict[str, str]:
    """
    Versions of what computes.

    Args:
        distributions: names of Python distributions.
        files: native libraries; their real names carry their versions.
    """
    found = {}
    for name in dict.fromkeys(distributions):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    found["numpy's BLAS"] = f"{blas.get('name', '?')} {blas.get('version', '')}".strip()
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    found |= _read("ROCm", rocm / ".info" / "version")
    for file in files:
        found[Path(file).name] = Path(os.path.realpath(file)).name
    return found


def _read(name: str, file: Path) -> dict[str, str]:
    try:
        return {name: file.read_text().strip()}
    except OSError:
        return {}
