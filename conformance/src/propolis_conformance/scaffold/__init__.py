"""
A new plugin's distribution, ready to install and to be proved.

The templates beside this file are what ``propolis new-plugin`` writes; ``$name`` is
the plugin's name, ``$distribution`` its distribution's, ``$package`` its import name.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from propolis import __version__
from propolis.errors import UsageError
from propolis.plugins import discover
from propolis.records import API_LEVEL
from propolis.wording import plugin_name


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "src/$package/__init__.py": "init.py.tmpl",
    "src/$package/py.typed": None,
    "tests/test_$package.py": "test_plugin.py.tmpl",
    "tests/test_conformance.py": "test_conformance.py.tmpl",
}
FOR_CPU = {
    "src/$package/plugin.py": "cpu_plugin.py.tmpl",
    "src/$package/ops_binary.py": "cpu_ops_binary.py.tmpl",
}
FOR_DEVICE = {
    "src/$package/plugin.py": "device_plugin.py.tmpl",
    "src/$package/device.py": "device_device.py.tmpl",
    "src/$package/ops_binary.py": "device_ops_binary.py.tmpl",
    "src/$package/ops_fill.py": "device_ops_fill.py.tmpl",
}


def create(name: str, parent: Path, kind: str | None = None) -> list[Path]:
    """
    Write a plugin's distribution into a new folder of ``parent``.

    Args:
        name: the plugin's name: letters, digits and underscores, ``-`` counts as ``_``.
        parent: an existing folder.
        kind: the kind of device that the plugin brings; None for ops on the CPU.

    Returns:
        The files written.

    Raises:
        UsageError: the name cannot be a module's or is one's or a plugin's already, the folder
            exists, or the kind cannot be a new one.
        OSError: it cannot be written; nothing of it is left.
    """
    package = plugin_name(name)
    if keyword.iskeyword(package):
        msg = f"{name!r} cannot name a plugin: it is a word of Python's; choose another name"
        raise UsageError(msg)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package):
        msg = f"{name!r} cannot name a plugin: use letters, digits and _, a letter first"
        raise UsageError(msg)
    if kind is not None:
        _check_kind(kind)
    distribution = package.replace("_", "-")
    folder = parent / distribution
    if folder.exists():
        msg = f"{folder} exists already: choose another name, or remove it"
        raise UsageError(msg)
    if importlib.util.find_spec(package) is not None:
        msg = f"{package!r} is a module that is installed already: choose another name"
        raise UsageError(msg)
    taken = next((found for found in discover() if found.name == package), None)
    if taken is not None:
        msg = f"a plugin {taken} is installed already: choose another name"
        raise UsageError(msg)
    device = f"{kind}:0" if kind else "cpu"
    words = {
        "name": package,
        "package": package,
        "distribution": distribution,
        "api": str(API_LEVEL),
        "core": __version__,
        "kind": kind or "cpu",
        "device": device,
        "option": f" --device {device}" if kind else "",
        "serves": f"brings a device, `{device}`, with `add` and `copy`"
        if kind
        else "serves `add` for f32 tensors on the CPU",
    }
    folder.mkdir()
    try:
        return _write(folder, {**FILES, **(FOR_DEVICE if kind else FOR_CPU)}, words)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what the next try would find in its way
        raise


def _write(folder: Path, files: Mapping[str, str | None], words: Mapping[str, str]) -> list[Path]:
    written = []
    for target, source in files.items():
        path = folder / Template(target).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "" if source is None else (resources.files(__package__) / source).read_text()
        path.write_text(Template(text).substitute(words))
        written.append(path)
    return written


def _check_kind(kind: str) -> None:
    if kind == "cpu":
        msg = "the device 'cpu' is core's: without --device the plugin has ops for it"
        raise UsageError(msg)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
        msg = f"{kind!r} cannot name a kind of device: use a-z, 0-9 and _, a letter first"
        raise UsageError(msg)
