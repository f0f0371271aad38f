"""
Composable Kernel's headers, which are not ours to keep: from flash-attn's sdist, by its digest.

A ROCm installation may have them too, of some other release: with others than those that the
kernels were tried with, nobody knows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import PropolisError


if TYPE_CHECKING:
    from pathlib import Path

RELEASE: Final = "2.8.3.post2"
DIGEST: Final = "d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b"

_INSIDE: Final = f"flash_attn-{RELEASE}/csrc/composable_kernel"

# The sdist's setup.py, which pip asks for the name and version, imports torch (and what
# requirements/ck.txt lists).
_STUBS: Final = {
    "torch/__init__.py": """
__version__ = "2.6.0"
class version: cuda = hip = None
class _C: _GLIBCXX_USE_CXX11_ABI = True
""",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": """
from setuptools.command.build_ext import build_ext as BuildExtension
CUDA_HOME = ROCM_HOME = None
IS_HIP_EXTENSION = False
CppExtension = CUDAExtension = None
""",
}


class HeadersError(PropolisError):
    """The headers could not be had."""


def fetch(scratch: Path) -> Path:
    """
    The folder with ``ck_tile/`` in it; fetched where it is not there yet.

    Args:
        scratch: where it is kept.

    Raises:
        HeadersError: it could not be fetched; says what pip said.
    """
    root = scratch / "composable_kernel"
    include = root / _INSIDE / "include"
    if (root / "complete").exists():
        return include
    root.mkdir(parents=True, exist_ok=True)
    archive = root / f"flash_attn-{RELEASE}.tar.gz"
    if not archive.exists():
        _download(root)
    with tarfile.open(archive) as tar:
        wanted = [m for m in tar if m.name.startswith(f"{_INSIDE}/include/ck_tile/") and m.isfile()]
        tar.extractall(root, wanted, filter="data")
    (root / "complete").touch()
    return include


def _download(root: Path) -> None:
    """By pip, which knows where packages come from on this machine."""
    stubs = root / "stubs"
    for name, text in _STUBS.items():
        path = stubs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pinned = root / "requirements.txt"
    pinned.write_text(f"flash-attn=={RELEASE} --hash=sha256:{DIGEST}\n")
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    done = subprocess.run(
        [*command, *options, "--dest", str(root), "-r", str(pinned)],
        env={**os.environ, "PYTHONPATH": str(stubs), "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = (
            f"Composable Kernel's headers (flash-attn {RELEASE}, 8 MB) could not be fetched; pip "
            f"said:\n{done.stdout}"
        )
        raise HeadersError(msg)
