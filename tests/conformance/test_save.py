from __future__ import annotations

import pytest

from propolis.cli import main
from propolis_conformance import Request
from propolis_conformance import run
from propolis_conformance.drift import load


WRONG = """
import os
def add(out, a, b, /):
    out.array[...] = a.array + b.array
    if out.shape and out.shape[-1] == 131:
        os.abort()
def mul(out, a, b, /):
    out.array[...] = a.array * b.array
    if out.numel:
        out.array.reshape(-1)[0] += 1
def sub(out, a, b, /):
    out.array[...] = a.array - b.array
@hookimpl
def propolis_ops(device):
    for fn in (add, mul, sub):
        yield OpImpl(op=fn.__name__, fn=fn, dtypes=F32, priority=100, deterministic=False)
"""


@pytest.fixture(scope="module")
def saved(install_for_all, tmp_path_factory):
    """The folder of a run on a plugin of which one op is wrong and one aborts."""
    install_for_all(WRONG)
    folder = tmp_path_factory.mktemp("failures")
    results, _ = run(Request("wrong", quick=True, save=str(folder)), workers=1)
    assert {r.unit: r.status for r in results} == {
        "add[f32]": "failed",
        "mul[f32]": "failed",
        "sub[f32]": "passed",
    }
    return folder


@pytest.mark.slow
def test_failing_cases_are_kept(saved):
    """One file for each unit that fails, with the smallest case; none for those that pass."""
    assert sorted(p.name for p in saved.iterdir()) == ["add-f32.npz", "mul-f32.npz"]
    mul = load(saved / "mul-f32.npz")
    assert mul.tensors["a"].shape == (1, 1, 1)
    assert mul.facts["unit"] == "mul[f32]"
    assert mul.facts["failure"].startswith("values: 1 of 1 elements wrong")
    assert (mul.facts["seed"], mul.facts["distribution"]) == (0, "wrong-dist")


@pytest.mark.slow
def test_what_ends_the_process_is_on_disk_before(saved):
    """The case that aborted is the one in the file."""
    add = load(saved / "add-f32.npz")
    assert add.tensors["a"].shape[-1] == 131
    assert add.facts["failure"] == "ended the process, or gave no sign of life"


@pytest.mark.slow
def test_the_command_and_replay(install, tmp_path, capsys):
    """--save-failures makes the folder; what is in it fails again."""
    install(WRONG)
    folder = tmp_path / "new" / "failures"
    arguments = ["conformance", "wrong", "--quick", "--op", "mul", "--save-failures", str(folder)]
    for command in (arguments, ["replay", str(folder / "mul-f32.npz")]):
        with pytest.raises(SystemExit) as done:
            main(command)
        assert done.value.code == 1
    assert "failed: values: 1 of 1 elements wrong" in capsys.readouterr().out


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    """It is found before anything is judged."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as done:
        main(["conformance", "cpu_ref", "--save-failures", str(tmp_path / "file")])
    assert done.value.code == 2
    assert "--save-failures" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_that_cannot_be_written(install, tmp_path, capsys):
    """That is said, instead of blaming the plugin, whose op is right."""
    install(WRONG)
    (tmp_path / "sub-f32.npz").mkdir()  # where the case would be
    with pytest.raises(SystemExit) as done:
        main(["conformance", "wrong", "--quick", "--op", "sub", "--save-failures", str(tmp_path)])
    said = capsys.readouterr()
    assert (done.value.code, said.out) == (2, "")
    assert said.err.endswith(
        f"error: --save-failures: {tmp_path}/sub-f32.npz cannot be written: Is a directory\n"
    )
