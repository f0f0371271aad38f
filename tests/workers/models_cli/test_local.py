from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest

from propolis import Runtime
from propolis.cli import main
from propolis.config import Config
from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm import default_model
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.default_model import located
from propolis_workers.models.names import ModelName
from propolis_workers.models.names import expect
from propolis_workers.models.names import parse
from propolis_workers.models.names import quantisation
from propolis_workers.models.names import short_names
from propolis_workers.models.store import Store


NAME = "some/Model-GGUF"


@pytest.fixture
def pulled(folder, tiny):
    """The tiny model, as if it had been pulled."""
    (folder / NAME).mkdir(parents=True)
    return tiny.gguf(folder / NAME / "Model-Q8_0.gguf")


@pytest.fixture(autouse=True)
def _none_packaged(monkeypatch):
    monkeypatch.setattr(default_model, "PACKAGED", ())


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("m-fp16.gguf", "F16"),
        ("m.bf16.gguf", "BF16"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q4_0/m-Q8_0.gguf", "Q8_0"),
        ("qwen.gguf", None),
    ],
)
def test_quantisation(file, kind):
    """A file's name says its quantisation, whatever the case and what else it says."""
    assert quantisation(file) == kind


def test_short_names():
    """Each short name is one that people can type, and stands for a file of a repository."""
    assert len(short_names()) > 10
    for short in short_names():
        assert short == short.lower()
        meant = expect(short.upper())
        assert meant.which is not None
        assert parse(str(meant)) == meant


def test_parse():
    """Names of files and paths are no names of models."""
    assert parse("a/b:q4_0") == ModelName("a/b", "Q4_0")
    assert parse("a/b:sub/x.gguf") == ModelName("a/b", "sub/x.gguf")
    for text in ("x.gguf", "a/b.gguf", "./a/b", "~/a", "/a/b", "a/b/c", "a/../b", "a", "a/b:"):
        assert parse(text) is None, text
    assert parse(f"{'a' * 200}/b") is None


def test_list(pulled, models, folder, monkeypatch, tiny_gguf):
    """Models are listed by name, with what is packaged, as a table and as JSON."""
    monkeypatch.setattr(default_model, "packaged", lambda: iter([("some-model", tiny_gguf)]))
    (folder / "b/c").mkdir(parents=True)
    (folder / "b/c/config.json").write_text("{}")
    (folder / "b/c/.model.safetensors.0123456789ab.part").write_bytes(b"123")
    (folder / "not a name").mkdir()
    (folder / "x").write_text("a file")
    rows = json.loads(models("list", "--json").out)
    assert [row["name"] for row in rows] == ["some-model", f"{NAME}:Q8_0", "b/c"]
    assert rows[1] == {
        "name": f"{NAME}:Q8_0",
        "short_names": [],
        "path": str(pulled),
        "quantisation": "Q8_0",
        "bytes": pulled.stat().st_size,
        "complete": True,
    }
    assert (rows[2]["complete"], rows[2]["bytes"]) == (False, 5)
    table = models("list").out
    assert f"{NAME}:Q8_0" in table
    assert "incomplete" in table


@pytest.mark.parametrize("only_names", [False, True])
@pytest.mark.parametrize("barred", ["", "b", NAME])
def test_list_without_permission(pulled, models, folder, monkeypatch, barred, only_names):
    """A folder that this user may not read is told: it is neither left out nor a bug of ours."""
    (folder / "b/c").mkdir(parents=True)
    shut, given = folder / barred, {n: getattr(os, n) for n in ("scandir", "listdir", "lstat")}

    def refusing(name):
        def of(path, *rest, **others):
            asked = Path(path).parent if name == "lstat" else Path(path)
            if asked == shut and (name == "lstat" or not only_names):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return given[name](path, *rest, **others)

        return of

    for name in given:
        monkeypatch.setattr(os, name, refusing(name))
    # Newer Pythons' calls a name of their own; the lambda looks up what was just put there.
    monkeypatch.setattr(Path, "lstat", lambda path: os.lstat(path))  # noqa: PLW0108
    done = models("list")
    if not barred:
        assert done.code == 2
        assert "cannot be used (Permission denied): give this user the right to it" in done.err
        assert f"error: {folder}" in done.err
        return
    assert done.code == 0
    (row,) = [line for line in done.out.splitlines() if line.rstrip().endswith(str(shut))]
    assert "cannot be read (Permission denied)" in row
    assert (f"{NAME}:Q8_0" in done.out) == (barred == "b")
    rows = json.loads(models("list", "--json").out)
    assert [row["problem"] for row in rows if "problem" in row] == [
        "cannot be read (Permission denied)"
    ]


def test_list_none(models, folder):
    """Where there are no models, the line says how to get one."""
    done = models("list")
    assert done.code == 0
    assert done.out == f"no models in {folder}: `propolis models pull NAME` gets one\n"
    assert json.loads(models("list", "--json").out) == []


def test_setting(models, pulled, monkeypatch, tmp_path):
    """A setting says where models are."""
    monkeypatch.setenv("PROPOLIS_MODELS_DIR", str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in models("list").out


def test_setting_of_a_file(models, pulled, monkeypatch):
    """A file where models should lie is told; it is not a folder without models."""
    monkeypatch.setenv("PROPOLIS_MODELS_DIR", str(pulled))
    done = models("list")
    assert done.code == 2
    assert f"{pulled} is no folder: models cannot be kept there; set models_dir to one" in done.err


@pytest.mark.parametrize("name", [NAME, f"{NAME}:q8_0", f"{NAME}:Model-Q8_0.gguf"])
def test_named(pulled, name):
    """Where a path is wanted, the name of a pulled model will do: settings, commands, Python."""
    assert find_model(Config.load(model=name)) == pulled
    assert LLM.load(name, runtime=Runtime.start(Config.load())).path == pulled


def test_commands_take_it(pulled, capsys):
    """`propolis llm -m NAME` runs it, and says how to get one that is not here."""
    main_exits(0, ["llm", "generate", "the", "-m", NAME, "-n", "2"])
    assert "loaded Model-Q8_0.gguf" in capsys.readouterr().err
    for command in (["llm", "generate", "x"], ["drift", "x"]):
        main_exits(2, [*command, "-m", f"{NAME}:Q4_0"])
        error = capsys.readouterr().err
        assert (
            f"{NAME}:Q4_0 is no path, nor a pulled model: `propolis models pull {NAME}:Q4" in error
        )
    main_exits(2, ["serve", "-m", "llama3.2:1b", "--port", "0"])
    error = capsys.readouterr().err
    assert "llama3.2:1b is no model that was pulled: `propolis models pull llama3.2:1b`" in error


def main_exits(code: int, arguments: list[str]) -> None:
    """Run a command that ends so."""
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert (done.value.code or 0) == code


def test_path_first(pulled, tmp_path, monkeypatch):
    """A path that exists is that path, whatever is pulled; what looks like a file stays one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    config = Config.load()
    assert str(located(NAME, config)) == NAME
    assert str(located("absent.gguf", config)) == "absent.gguf"
    assert str(located("sub/absent.gguf", config)) == "sub/absent.gguf"
    assert str(located("x" * 5000, config)) == "x" * 5000


def test_which(pulled, folder, tiny):
    """Of several the usual one is meant, of none of those it must be said; a folder is first."""
    config = Config.load()
    tiny.gguf(folder / NAME / "Model-Q2_K.gguf")
    assert located(NAME, config) == pulled
    pulled.rename(pulled.with_name("Model-Q3_K_M.gguf"))
    with pytest.raises(ModelError, match=r"without saying which.* there are: :Q2_K, :Q3_K_M$"):
        located(NAME, config)
    tiny.folder(folder / NAME)
    assert located(NAME, config) == folder / NAME
    assert located(f"{NAME}:Q2_K", config) == folder / NAME / "Model-Q2_K.gguf"


def test_others_beside(pulled, folder, tiny):
    """Projectors and statistics beside a model are not it, but files by their own names."""
    config = Config.load()
    for other in ("mmproj-Model-Q8_0.gguf", "imatrix.gguf", "mmproj-F16.gguf"):
        tiny.gguf(folder / NAME / other)
    assert located(NAME, config) == pulled
    assert located(f"{NAME}:Q8_0", config) == pulled
    assert located(f"{NAME}:mmproj-F16.gguf", config).name == "mmproj-F16.gguf"
    names = [one.name for one in Store.of(config).models()]
    assert f"{NAME}:Q8_0" in names
    assert f"{NAME}:mmproj-F16.gguf" in names
    with pytest.raises(ModelError, match="is no path, nor a pulled model"):
        located(f"{NAME}:F16", config)


@pytest.mark.parametrize("given", ["~nobody-at-all/x", "~nobody-at-all/x/y.gguf"])
def test_home_of_nobody(models, given, monkeypatch):
    """A path below the home of a user that there is not is a path that does not exist."""
    done = models("show", given)
    assert done.code == 2
    assert given in done.err
    assert done.err.count("\n") == 1
    monkeypatch.setenv("PROPOLIS_MODELS_DIR", given)
    assert models("list").code == 0


def test_list_while_removing(pulled, models, folder, monkeypatch):
    """What is removed while models are listed is left out, or empty, and no error."""
    found = Store.of(Config.load()).models()
    assert [one.nbytes > 0 for one in found] == [True]
    assert Store.of(Config.load()).remove(found[0]) > 0
    assert found[0].nbytes == 0
    assert Store.of(Config.load()).remove(found[0]) == 0
    (folder / NAME).mkdir(parents=True)
    plain = Path.is_dir

    def gone(path):
        answer = plain(path)
        if path == folder / NAME:
            path.rmdir()
        return answer

    monkeypatch.setattr(Path, "is_dir", gone)
    assert models("list").code == 0


def test_incomplete(pulled, folder):
    """What is not whole is not found."""
    part = pulled.with_name(f".{pulled.name}.0123456789ab.part")
    pulled.rename(part)
    with pytest.raises(ModelError, match="`propolis models pull some/Model-GGUF` gets it"):
        located(NAME, Config.load())


def test_rm(pulled, models, folder, tiny):
    """Removing says what was freed, and leaves no empty folder."""
    size = pulled.stat().st_size
    (folder / "b").mkdir()
    tiny.folder(folder / "b/c")
    done = models("rm", NAME, "--yes")
    assert done.code == 0
    assert done.out == f"removed {NAME}:Q8_0: {size / 1e6:.2f} MB freed\n"
    assert [one.name for one in folder.iterdir()] == ["b"]
    (answer,) = json.loads(models("rm", "b/c", "--yes", "--json").out)
    assert answer["name"] == "b/c"
    assert answer["freed_bytes"] > 0
    assert not list(folder.iterdir())


def test_rm_leaves_others(models, folder, tiny, tmp_path):
    """What no pull wrote is no model, nor part of one: it is neither listed nor removed."""
    (folder / "notes/mine").mkdir(parents=True)
    (folder / "b").mkdir()
    (folder / "notes/mine/README.md").write_text("mine")
    tiny.folder(folder / "b/c")
    (folder / "b/c/thesis.tex").write_text("mine")
    elsewhere = tiny.folder(tmp_path / "elsewhere")
    (folder / "b/linked").symlink_to(elsewhere, target_is_directory=True)
    assert [one["name"] for one in json.loads(models("list", "--json").out)] == ["b/c"]
    for name in ("notes/mine", "b/linked"):
        assert models("rm", name, "--yes").code == 2
    assert models("rm", "b/c", "--yes").code == 0
    assert [one.name for one in (folder / "b/c").iterdir()] == ["thesis.tex"]
    assert (folder / "notes/mine/README.md").exists()
    assert (elsewhere / "config.json").exists()


def test_rm_asks(pulled, models, monkeypatch):
    """Without --yes a terminal is asked, and what is none is an error."""
    done = models("rm", NAME)
    assert done.code == 2
    assert "give --yes" in done.err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert models("rm", NAME).code == 0
    assert pulled.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "removed" in models("rm", NAME).out
    assert not pulled.exists()


def test_rm_refuses(pulled, models, folder, tiny, tiny_gguf, monkeypatch):
    """What is not here, or several, or a distribution's, is not removed."""
    tiny.gguf(folder / NAME / "Model-Q2_K.gguf")
    done = models("rm", NAME, "--yes")
    assert done.code == 2
    assert f"there are: {NAME}:Q2_K, {NAME}:Q8_0" in done.err
    done = models("rm", "some/Model", "--yes")
    assert done.code == 2
    assert f"some/Model was not pulled: did you mean {NAME}:Q" in done.err
    done = models("rm", str(pulled), "--yes")
    assert done.code == 2
    monkeypatch.setattr(default_model, "packaged", lambda: iter([("some-model", tiny_gguf)]))
    done = models("rm", "some-model", "--yes")
    assert done.code == 2
    assert "`pip uninstall some-model` removes it" in done.err
    assert pulled.exists()


def test_rm_incomplete(pulled, models, folder):
    """What a cut pull left goes too."""
    part = pulled.with_name(".Model-Q4_0.gguf.0123456789ab.part")
    pulled.rename(part)
    assert models("rm", f"{NAME}:Q4_0", "--yes").code == 0
    assert not list(folder.iterdir())
