from __future__ import annotations

import json

import pytest

from propolis import __version__
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.dispatch.lock import lock
from propolis.runtime import Runtime


@pytest.mark.usefixtures("unvetted")
def test_it_holds_every_key_of_every_op(cli, site, sources):
    """Valid JSON, the same each time, one line a key, with who wins and at which priority."""
    site.plugin("fast", sources.fast_add)
    text = cli("lock").out
    assert cli("lock").out == text
    found = json.loads(text)
    assert found == lock(Runtime.start(Config.load()).cpu)
    assert list(found["ops"]) == sorted(ops.catalogue())
    assert '      "f32": {"plugin": "fast", "distribution": "fake-fast", "version": "1.0", ' in text
    assert found["ops"]["add"]["f32"]["priority"] == 100
    assert found["ops"]["add"]["f16"]["plugin"] == "cpu_ref"
    assert len(found["ops"]["qmatmul"]) == len(dtypes.FLOATS) * len(dtypes.BLOCKS)
    assert (found["device"], found["arch"]) == ("cpu", Runtime.start().cpu.properties.arch)


@pytest.mark.usefixtures("unvetted")
def test_check(cli, site, sources, tmp_path):
    """0 and one line when nothing changed; 1 and a line for each difference otherwise."""
    file = str(tmp_path / "propolis.lock.json")
    assert cli("lock", "-o", file).out == ""
    done = cli("lock", "--check", file)
    assert (done.code, done.out) == (0, f"{file}: nothing has changed\n")
    site.plugin("fast", sources.fast_add)
    done = cli("lock", "--check", file)
    assert done.code == 1
    assert done.out == (
        f"add (f32): locked cpu_ref (propolis-cpu-ref {__version__}) priority 0, "
        "now fast (fake-fast 1.0) priority 100\n"
    )


@pytest.mark.usefixtures("unvetted")
def test_differences_of_every_kind(cli, site, sources, tmp_path):
    """Another machine, ops and keys that came or went, and rungs below the plugins."""
    file = tmp_path / "lock.json"
    site.plugin("toy", sources.toy_device)
    cli("lock", "--device", "toy", "-o", str(file))
    document = json.loads(file.read_text())
    assert document["ops"]["add"]["f32"]["cpu"]["plugin"] == "cpu_ref"
    document["arch"] = "toy0"
    document["ops"]["gone"] = {"f32": None}
    document["ops"]["linear"]["f32"] = {"decomposed": ["matmul", "add"]}
    document["ops"]["mul"]["f99"] = document["ops"]["mul"].pop("f32")
    file.write_text(json.dumps(document))
    who = f"the cpu: cpu_ref (propolis-cpu-ref {__version__}) priority 0"
    assert cli("lock", "--device", "toy", "--check", str(file)).out.splitlines() == [
        "arch: locked toy0, now toy1",
        "gone (f32): locked nobody, now absent",
        f"linear (f32): locked decomposed into matmul, add, now {who}",
        f"mul (f32): locked absent, now {who}",
        f"mul (f99): locked {who}, now absent",
    ]


@pytest.mark.usefixtures("unvetted")
def test_the_lock_of_another_device(cli, site, sources, tmp_path):
    """One line: whose it is, what is checked, and what to do; not a line for each op."""
    file = tmp_path / "my lock.json"
    site.plugin("toy", sources.toy_device)
    cli("lock", "--device", "toy", "-o", str(file))
    arch = Runtime.start().cpu.properties.arch
    done = cli("lock", "--check", str(file))
    assert done.code == 1
    assert done.out == (
        f"{file} was written for toy:0 (toy1), and this checks cpu ({arch}): "
        f"`propolis lock --check '{file}' --device toy:0` checks the same device, "
        f"`propolis lock -o '{file}' --device cpu` writes it for this one\n"
    )
    document = json.loads(file.read_text())
    del document["device"]
    file.write_text(json.dumps(document))
    assert "does not say which device" in cli("lock", "--check", str(file)).out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no lock file"),
        ('{"ops": {"add": 1}}', "is no lock file"),
    ],
)
def test_files_that_cannot_be_compared(cli, tmp_path, content, message):
    """Exit code 2, one line, and the command that writes one, not over what is something else."""
    file = tmp_path / "lock.json"
    if content is not None:
        file.write_text(content)
    done = cli("lock", "--check", str(file))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert f"`propolis lock -o {file if content is None else 'FILE'}`" in done.err


def test_a_folder_is_no_file_to_compare(cli, tmp_path):
    """A folder is not to be written over: a file is asked for."""
    done = cli("lock", "--check", str(tmp_path))
    assert done.code == 2
    assert "cannot be read: Is a directory; give a file that `propolis lock -o FILE`" in done.err


def test_a_file_that_cannot_be_written(cli, tmp_path):
    """Exit code 2; and both options at once are refused."""
    assert cli("lock", "-o", str(tmp_path / "no" / "file")).code == 2
    assert cli("lock", "-o", "a", "--check", "b").code == 2
