"""What `propolis new-plugin` writes, and refuses (tests/downstream installs and runs it)."""

from __future__ import annotations

import errno
import os
import tomllib
from pathlib import Path

import pytest

from propolis.errors import UsageError
from propolis.records import API_LEVEL
from propolis_conformance import scaffold
from propolis_conformance.scaffold import create


@pytest.mark.parametrize("kind", [None, "toy"])
def test_everything_is_filled_in(kind, tmp_path):
    """No placeholder is left, Python files compile, and the API level is this version's."""
    files = create("Hive-Add", tmp_path, kind)
    texts = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in files}
    assert {"hive-add"} == {Path(name).parts[0] for name in texts}
    for name, text in texts.items():
        assert "$" not in text, name
        if name.endswith(".py"):
            compile(text, name, "exec")
    assert f"api={API_LEVEL}," in texts["hive-add/src/hive_add/plugin.py"]
    project = tomllib.loads(texts["hive-add/pyproject.toml"])
    plugins = project["project"]["entry-points"]["propolis.plugins"]
    assert {"hive_add": "hive_add.plugin"} == plugins
    loaded = ["-p", "propolis_conformance.pytest_plugin", "--propolis-plugin=hive_add"]
    assert project["tool"]["pytest"]["ini_options"]["addopts"] == loaded


def test_every_template_is_used(tmp_path):
    """Nothing beside the module is left over."""
    used = {*scaffold.FILES.values(), *scaffold.FOR_CPU.values(), *scaffold.FOR_DEVICE.values()}
    folder = Path(scaffold.__file__).parent
    assert {f.name for f in folder.glob("*.tmpl")} == used - {None}


def test_the_command(cli, tmp_path):
    """It lists what it wrote, and says what to do next."""
    done = cli("new-plugin", "hive", "--in", str(tmp_path))
    assert done.code == 0
    assert str(tmp_path / "hive/src/hive/plugin.py") in done.out.splitlines()
    assert done.err == f"next: pip install -e '{tmp_path}/hive[test]'\n"


def test_a_name_that_is_taken(cli, tmp_path):
    """Two plugins of one name cannot be installed together: nothing is written."""
    done = cli("new-plugin", "cpu-ref", "--in", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: a plugin cpu_ref (propolis-cpu-ref ")
    assert done.err.endswith(" is installed already: choose another name\n")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(cli):
    """It is named, with what to do; no bug is suspected."""
    done = cli("new-plugin", "hive", "--in", "/proc")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: /proc cannot be written: ")
    assert done.err.endswith("; choose another folder by --in\n")


def test_a_disk_that_gets_full(cli, tmp_path, monkeypatch):
    """Nothing is left of what was written before, so that the next try finds nothing in its way."""
    write = Path.write_text

    def fill(path, text):
        if path.name == "plugin.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", fill)
    done = cli("new-plugin", "hive", "--in", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path} cannot be written: No space left on device; ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "1st", "class", "a b", "ü", "../x"])
def test_names_that_cannot_be(name, tmp_path):
    """A name that is no module name is refused, and nothing is written."""
    with pytest.raises(UsageError, match="cannot name a plugin"):
        create(name, tmp_path)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["numpy", "propolis", "json", "Propolis-CPU-Ref"])
def test_names_that_are_taken(name, tmp_path):
    """A plugin whose package hides another one's would break more than itself."""
    with pytest.raises(UsageError, match="installed already"):
        create(name, tmp_path)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "said"),
    [("cpu", "'cpu' is core's"), ("", "''"), ("a:0", "'a:0'"), ("Toy", "'Toy' cannot name a kind")],
)
def test_kinds_that_cannot_be(kind, said, tmp_path):
    """Kinds that no user could type, and core's own, are refused, and nothing is written."""
    with pytest.raises(UsageError, match=said):
        create("mine", tmp_path, kind)
    assert [] == list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    """A folder that exists is left as it is."""
    create("mine", tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        create("mine", tmp_path)
