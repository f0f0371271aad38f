from __future__ import annotations

import json
import shutil

import pytest

from propolis import default_runtime
from propolis_workers.llm import LLM


def test_gguf(models, tiny_gguf, tiny):
    """What a GGUF file says of itself is printed, with the memory that loading checks for."""
    done = models("show", str(tiny_gguf), "--json")
    answer = json.loads(done.out)
    assert answer["path"] == str(tiny_gguf)
    assert (answer["format"], answer["architecture"]) == ("GGUF 3", "llama")
    count = sum(values.size for values in tiny.weights.values())
    assert (answer["parameters"], answer["bytes"]) == (count, 4 * count)
    assert answer["quantisation"] == {"f32": 1.0}
    assert answer["tokenizer"] == "gpt2 (gpt-2)"
    assert answer["vocab"] == 266
    assert answer["template"] == tiny.metadata["tokenizer.chat_template"]
    assert answer["problems"] == []
    llm = LLM.load(tiny_gguf)
    assert answer["context"] == llm.config.context_length
    (need,) = answer["memory"]
    assert need["device"] == "cpu"
    assert need["weights"] >= 4 * count
    assert need["contexts"][str(answer["context"])] > need["weights"]
    assert need["free"] > 0
    assert (need["dtype"], need["kv_dtype"]) == ("f32", "f32")


def test_folder(models, tiny_folder):
    """A safetensors folder is shown alike."""
    answer = json.loads(models("show", str(tiny_folder), "--json").out)
    assert answer["format"] == "safetensors"
    assert (answer["architecture"], answer["tokenizer"], answer["vocab"]) == ("llama", "BPE", 266)
    assert answer["problems"] == []


def test_text(models, tiny_gguf):
    """People get a line for each fact; of the template its first line."""
    lines = models("show", str(tiny_gguf)).out.splitlines()
    words = [line.split()[0] for line in lines]
    known = "path format architecture parameters quantisation context tokenizer template"
    assert words == [*known.split(), "computed", "memory"]
    assert lines[-2].split() == ["computed", "in", "cpu:", "f32,", "keys", "in", "f32"]
    assert "cpu: " in lines[-1]
    assert all(len(line) < 200 for line in lines[1:])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensors": {"blk.0.attn_q.weight": None}}, "blk.0.attn_q.weight"),
        ({"metadata": {"llama.block_count": 3}}, "blk.2."),
        ({"metadata": {"llama.attention.head_count_kv": 4}}, "attn_k.weight"),
        ({"metadata": {"tokenizer.chat_template": "{% if %}"}}, "in chats: the chat template"),
    ],
)
def test_what_does_not_fit(models, tiny, tmp_path, changes, says):
    """What loading would refuse is said, though no weights are read."""
    done = models("show", str(tiny.gguf(tmp_path / "x.gguf", **changes)))
    assert done.code == 0
    (told,) = (line for line in done.out.splitlines() if line.startswith("does not run"))
    assert says in told


def test_hostile_texts(models, tiny, tmp_path):
    """What a file says cannot steer a terminal, nor look like another line."""
    evil = "a\x1b[2J\x1b]0;owned\x07\rmemory\n\u202eb\x9b1m"
    path = tiny.gguf(tmp_path / "x\x1b[1m.gguf", architecture=evil)
    done = models("show", str(path))
    assert done.code == 0
    assert "architecture  a\\x1b[2J\\x1b]0;owned\\x07\\rmemory\\n\\u202eb\\x9b1m\n" in done.out
    assert done.out.replace("\n", "").isprintable()
    assert json.loads(models("show", str(path), "--json").out)["architecture"] == evil
    done = models("show", "absent\x1b[2J.gguf")
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.rstrip("\n").isprintable()


def test_default(models, tiny_gguf, monkeypatch):
    """Without an argument it is the model that would run; an empty one is a mistake."""
    assert models("show", "").code == 2
    monkeypatch.setenv("PROPOLIS_MODEL", str(tiny_gguf))
    assert str(tiny_gguf) in models("show").out


def test_does_not_run(models, tiny, tiny_folder, tmp_path):
    """A model that no worker runs is shown all the same, with the reason."""
    path = tiny.gguf(tmp_path / "x.gguf", architecture="mystery")
    done = models("show", str(path))
    assert done.code == 0
    assert "architecture  mystery\n" in done.out
    assert "does not run  x.gguf: architecture 'mystery' is not supported" in done.out
    folder = shutil.copytree(tiny_folder, tmp_path / "folder")
    (folder / "tokenizer.json").unlink()
    answer = json.loads(models("show", str(folder), "--json").out)
    assert answer["tokenizer"] == ""
    assert len(answer["problems"]) == 1
    assert answer["memory"]


@pytest.mark.parametrize("given", ["absent.gguf", "absent/model", "no-such-thing"])
def test_absent(models, given):
    """What is not there is one line."""
    done = models("show", given)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


def test_a_device_that_fails(models, tiny_gguf, monkeypatch):
    """A device that cannot be opened is named with its reason, and the others are shown."""
    from propolis.errors import DeviceError
    from propolis_workers.models import facts

    def fail(*_):
        msg = "the driver says no"
        raise DeviceError(msg)

    monkeypatch.setattr(facts, "weight_bytes", fail)
    assert "memory        cpu: the driver says no" in models("show", str(tiny_gguf)).out
    assert default_runtime().cpu.id == "cpu"
