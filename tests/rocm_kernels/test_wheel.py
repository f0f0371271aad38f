"""What a user installs: one wheel for all machines, with code objects and sources."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from propolis_rocm_kernels import _code


PROJECT = Path(__file__).parents[2] / "plugins" / "rocm_kernels"


@pytest.fixture(scope="module", params=["from the checkout", "from the sdist"])
def wheel(request, tmp_path_factory):
    """The wheel, as it is built here, and as it is built of what is published beside it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    kind = ["--wheel"] if request.param == "from the checkout" else []
    subprocess.run([*command, *kind, str(PROJECT)], check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_is_for_all_machines(wheel) -> None:
    """Code objects are data to Python: no platform stands in the wheel's name."""
    assert wheel.name.endswith("-py3-none-any.whl")


def test_sources_are_shipped(wheel) -> None:
    """Each source and header is in the wheel, so that hipRTC can compile them anywhere."""
    packed = zipfile.ZipFile(wheel)
    for file in _code.NATIVE.iterdir():
        assert file.read_bytes() == packed.read(f"propolis_rocm_kernels/native/{file.name}")


def test_code_objects_are_shipped(wheel, manifest) -> None:
    """Each code object that the manifest names is in the wheel, and the manifest itself."""
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {"manifest.json", "resources.json.xz"}
    files |= {e["file"] for m in manifest["modules"].values() for e in m["objects"].values()}
    assert {f"propolis_rocm_kernels/code/{file}" for file in files} <= names
