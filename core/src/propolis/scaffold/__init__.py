"""
A new plugin's distribution, ready to install and to be proved.

The templates beside this file are what ``propolis new-plugin`` writes; ``$name`` is
the plugin's name, ``$distribution`` its distribution's, ``$package`` its import name.
"""

from __future__ import annotations

import keyword
import re
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from propolis import __version__
from propolis.errors import UsageError
from propolis.records import API_LEVEL


if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "src/$package/__init__.py": "init.py.tmpl",
    "src/$package/plugin.py": "plugin.py.tmpl",
    "src/$package/ops_binary.py": "ops_binary.py.tmpl",
    "src/$package/py.typed": None,
    "tests/test_$package.py": "test_plugin.py.tmpl",
}


def create(name: str, parent: Path) -> list[Path]:
    """
    Write a plugin's distribution into a new folder of ``parent``.

    Args:
        name: the plugin's name: letters, digits and underscores, ``-`` counts as ``_``.
        parent: an existing folder.

    Returns:
        The files written.

    Raises:
        UsageError: the name cannot be a module's, or the folder exists already.
    """
    package = name.strip().lower().replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package):
        msg = f"{name!r} cannot name a plugin: use letters, digits and _, a letter first"
        raise UsageError(msg)
    distribution = package.replace("_", "-")
    folder = parent / distribution
    if folder.exists():
        msg = f"{folder} exists already: choose another name, or remove it"
        raise UsageError(msg)
    words = {
        "name": package,
        "package": package,
        "distribution": distribution,
        "api": str(API_LEVEL),
        "core": __version__,
    }
    written = []
    for target, source in FILES.items():
        path = folder / Template(target).substitute(words)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "" if source is None else (resources.files(__package__) / source).read_text()
        path.write_text(Template(text).substitute(words))
        written.append(path)
    return written
