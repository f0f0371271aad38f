from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import gguf
import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.llm import LLM
from propolis_workers.models.mixtures import MIXTURES
from propolis_workers.models.mixtures import formats
from propolis_workers.models.parts import whole
from propolis_workers.weights import GGUFFile


RANDOM = np.random.RandomState(3)
LAYERS = 16
SHAPES = {
    "token_embd.weight": (512, 256),
    "output_norm.weight": (256,),
    "output.weight": (512, 256),
    **{
        f"blk.{layer}.{part}.weight": shape
        for layer in range(LAYERS)
        for part, shape in {
            "attn_norm": (256,),
            "attn_q": (256, 256),
            "attn_k": (64, 256),
            "attn_v": (64, 256),
            "attn_output": (256, 256),
            "ffn_gate": (512, 256),
            "ffn_down": (256, 512),
        }.items()
    },
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A GGUF file of matrices in f32, whose vocabulary has a token that is no UTF-8."""
    path = tmp_path_factory.mktemp("quantize") / "in.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", LAYERS)
    writer.add_float32("llama.rope.freq_base", 500.0)
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_array("tokenizer.ggml.tokens", [b"\xff\xfe", b"a", b"b"])
    writer.add_uint16("some.short", 7)
    writer.add_bool("some.flag", True)
    writer.add_file_type(0)
    writer.add_custom_alignment(64)
    for name, shape in SHAPES.items():
        writer.add_tensor(name, RANDOM.randn(*shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_bytes(source, models, tmp_path, kind):
    """Matrices are byte for byte what the gguf library makes of them; vectors stay."""
    out = tmp_path / "out.gguf"
    assert models("quantize", str(source), str(out), "--type", kind).code == 0
    before, after = GGUFFile.open(source), GGUFFile.open(out)
    assert [*before.tensors] == [*after.tensors]
    theirs = gguf.GGMLQuantizationType[kind.upper()]
    for name, info in after.tensors.items():
        assert info.shape == before.tensors[name].shape
        values = before.data(name).view(np.float32).reshape(info.shape)
        if len(info.shape) == 1:
            assert (after.data(name) == before.data(name)).all()
        elif name != "output.weight" or kind == "q8_0":
            assert info.dtype.name == kind
            assert after.data(name).tobytes() == gguf.quants.quantize(values, theirs).tobytes()
        else:
            expected = ops.quantize(Tensor.from_numpy(values), dtypes.q6_k).numpy()
            assert after.data(name).tobytes() == expected.tobytes()


def test_metadata(source, models, tmp_path):
    """What the file says is copied as it stands, with its type; the gguf library reads it."""
    out = tmp_path / "out.gguf"
    models("quantize", str(source), str(out), "--type", "Q4_K_M")
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(out)
    own = {"GGUF.tensor_count", "GGUF.kv_count", "general.alignment", "general.file_type"}
    for key in before.fields.keys() - own:
        assert before.fields[key].types == after.fields[key].types, key
        if key != "GGUF.version":
            old, new = (reader.fields[key].parts[3:] for reader in (before, after))
            assert [part.tobytes() for part in old] == [part.tobytes() for part in new], key
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_M
    assert after.fields["general.quantization_version"].contents() == 2
    assert {tensor.name for tensor in after.tensors} == SHAPES.keys()


def test_mixture():
    """Q4_K_M has more bits in the output, and in values and second matrices of half the layers."""
    found = formats(MIXTURES["q4_k_m"], SHAPES)
    assert found["output.weight"] is dtypes.q6_k
    assert found["token_embd.weight"] is dtypes.q4_k
    assert found["blk.0.attn_norm.weight"] is None
    for part in ("attn_v", "ffn_down"):
        more = [n for n in range(LAYERS) if found[f"blk.{n}.{part}.weight"] is dtypes.q6_k]
        assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert found["blk.0.attn_q.weight"] is dtypes.q4_k
    small = formats(MIXTURES["q4_k_s"], SHAPES)
    first = [n for n in range(LAYERS) if small[f"blk.{n}.attn_v.weight"] is dtypes.q5_k]
    assert first == [0, 1, 2, 3]
    first = [n for n in range(LAYERS) if small[f"blk.{n}.ffn_down.weight"] is dtypes.q5_k]
    assert first == [0, 1]


def test_mixture_of_others():
    """An embedding that is the output too, experts, fused matrices and odd rows have rules."""
    tied = {name: shape for name, shape in SHAPES.items() if name != "output.weight"}
    assert formats(MIXTURES["q4_k_m"], tied)["token_embd.weight"] is dtypes.q6_k
    mixed = {**SHAPES, "blk.0.ffn_gate_inp.weight": (8, 256), "blk.0.attn_qkv.weight": (9, 256)}
    found = formats(MIXTURES["q4_k_m"], mixed, experts=8)
    assert found["blk.0.ffn_gate_inp.weight"] is None
    assert found["blk.0.attn_qkv.weight"] is dtypes.q5_k
    assert found["blk.3.attn_v.weight"] is found["blk.3.attn_k.weight"] is dtypes.q8_0
    assert found["blk.3.attn_output.weight"] is dtypes.q5_k
    odd = {"token_embd.weight": (9, 96), "blk.0.attn_q.weight": (9, 96), "blk.0.x.weight": (9, 7)}
    found = formats(MIXTURES["q4_k_m"], odd)
    assert [*found.values()] == [dtypes.q8_0, dtypes.q5_0, dtypes.f16]


@pytest.mark.parametrize("kind", MIXTURES)
def test_answers(models, tiny_gguf, tmp_path, kind):
    """What was made runs, and its logits are near those of the model it was made of."""
    out = tmp_path / f"{kind}.gguf"
    answer = json.loads(models("quantize", str(tiny_gguf), str(out), "--type", kind, "--json").out)
    assert answer["bytes"] == out.stat().st_size < answer["from_bytes"]
    ids = [*range(60, 80)]
    expected = LLM.load(tiny_gguf).engine().logits_of(ids)
    actual = LLM.load(out).engine().logits_of(ids)
    error = ((actual - expected) ** 2).mean() / (expected**2).mean()
    assert error < {"f16": 1e-5, "bf16": 1e-3, "q8_0": 1e-2}.get(kind, 0.3)


@pytest.mark.parametrize("stored", [dtypes.f16, dtypes.bf16])
def test_from_halves(models, source, tmp_path, stored):
    """A file in half precision is quantised as its numbers in f32 are."""
    half, out = tmp_path / "half.gguf", tmp_path / "out.gguf"
    models("quantize", str(source), str(half), "--type", stored.name)
    assert models("quantize", str(half), str(out), "--type", "q8_0").code == 0
    before, after = GGUFFile.open(half), GGUFFile.open(out)
    name = "blk.0.attn_q.weight"
    values = before.data(name).view(stored.numpy).astype(np.float32).reshape(256, 256)
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert after.data(name).tobytes() == expected.tobytes()


def test_refused(models, source, tmp_path, tiny_folder):
    """A type that is none, a file that is quantised or there already: one line each."""
    out = tmp_path / "out.gguf"
    done = models("quantize", str(source), str(out), "--type", "q4_k_x")
    assert done.code == 2
    assert "--type q4_k_x is not known; supported: q8_0, q6_k" in done.err
    assert "did you mean q4_k_s" in done.err
    assert models("quantize", str(source), str(out), "--type", "q8_0").code == 0
    done = models("quantize", str(source), str(out), "--type", "q8_0")
    assert f"{out} exists: give another name, or --overwrite" in done.err
    assert models("quantize", str(source), str(out), "--type", "q8_0", "--overwrite").code == 0
    done = models("quantize", str(source), str(source), "--type", "q8_0", "--overwrite")
    assert (done.code, source.exists()) == (2, True)
    assert f"{source} is the model itself, which would be gone: give another file" in done.err
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        shutil.copy(source, part)
    done = models("quantize", *map(str, parts), "--type", "q8_0", "--overwrite")
    assert (done.code, "would be gone" in done.err) == (2, True)
    assert parts[1].read_bytes() == source.read_bytes()
    done = models("quantize", str(out), str(tmp_path / "2.gguf"), "--type", "q4_0")
    assert done.code == 2
    assert "is quantised already (token_embd.weight is q8_0)" in done.err
    for target in (tmp_path, tmp_path / "no/such/folder.gguf"):
        done = models("quantize", str(source), str(target), "--type", "q8_0")
        assert done.code == 2
        assert "in a folder that exists" in done.err
    done = models("quantize", "a/b:f16", str(tmp_path / "2.gguf"), "--type", "q8_0")
    assert "`propolis models pull a/b:f16` gets it" in done.err


@pytest.mark.parametrize(
    ("kind", "number", "said"),
    [
        ("f16", 1e30, "1e+30, which f16 cannot hold"),
        ("q8_0", -1e30, "1e+30, which q8_0 cannot hold"),
        ("q8_0", np.nan, "nan"),
        ("f16", np.inf, "inf"),
        ("q8_0", 1e5, None),
    ],
)
def test_numbers_that_do_not_fit(models, tmp_path, kind, number, said):
    """A model whose numbers the type cannot hold is refused by the tensor, and nothing is left."""
    path, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.full((4, 256), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = models("quantize", str(path), str(out), "--type", kind)
    if said is None:
        assert (0, True) == (done.code, out.exists())
        return
    assert (2, False) == (done.code, out.exists())
    assert f"token_embd.weight has {said}: give another --type, or mend the model" in done.err


def test_full_disk(models, source, tmp_path, monkeypatch):
    """A disk that fills is said, and nothing is left behind."""
    from propolis_workers.models import quantize

    def full(*_):
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(quantize, "converted", full)
    done = models("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q8_0")
    assert done.code == 2
    assert "cannot be written (No space left on device)" in done.err
    assert not [*tmp_path.iterdir()]


def test_from_any_part(models, tmp_path):
    """Of a split model the first part's metadata is kept, whichever part is named."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    writer.add_context_length(11)
    for number in range(3):
        writer.add_tensor(f"blk.{number}.ffn_up.weight", np.ones((4, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out = tmp_path / "q.gguf"
    part = tmp_path / "m-00002-of-00003.gguf"
    done = models("quantize", str(part), str(out), "--type", "q8_0")
    assert done.code == 0, done.err
    with GGUFFile.open(out) as file:
        assert file.metadata["llama.context_length"] == 11
        assert file.metadata["general.architecture"] == "llama"
        assert len(file.tensors) == 3


def test_what_is_to_be_converted_first(models, tmp_path, tiny_folder):
    """A folder, or its file, is no GGUF file: the command that makes one is named."""
    out = tmp_path / "out.gguf"
    for given in (tiny_folder, next(tiny_folder.glob("*.safetensors"))):
        done = models("quantize", str(given), str(out), "--type", "q8_0")
        assert done.code == 2
        assert f"convert it first: `propolis models convert {tiny_folder} FILE.gguf`" in done.err
    assert not out.exists()


def test_what_is_converted_already(models, source, tmp_path):
    """A GGUF file is made smaller by the other command."""
    done = models("convert", str(source), str(tmp_path / "out.gguf"))
    assert done.code == 2
    assert "is a GGUF file already: `propolis models quantize` makes it smaller" in done.err


def test_a_signal_leaves_no_part(source, tmp_path):
    """SIGTERM, as of `timeout` or a container that stops, ends it as Ctrl-C does, and by itself."""
    script = """if True:
        import os, pathlib, signal, sys
        from propolis.cli import main
        os.link = lambda *_: os.kill(os.getpid(), getattr(signal, sys.argv[3]))
        main(["models", "quantize", *sys.argv[1:3], "--type", "q4_0"])
    """
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "out.gguf")]
    done = subprocess.run([*command, "SIGTERM"], capture_output=True, check=False)
    assert -signal.SIGTERM == done.returncode, done.stderr
    assert [] == list(tmp_path.iterdir())
    done = subprocess.run([*command, "SIGKILL"], capture_output=True, check=False)
    assert -signal.SIGKILL == done.returncode, done.stderr
    (part,) = tmp_path.iterdir()
    assert part.name.startswith(".out.gguf.")


def test_what_a_killed_one_left_is_removed(models, source, tmp_path):
    """The part that SIGKILL leaves stays until the next does the same; another file's stays."""
    parts = [tmp_path / name for name in (".out.gguf.1.part", ".out.gguf.2.part", ".o.gguf.3.part")]
    for part in parts:
        part.write_bytes(bytes(100))
    for part in (parts[0], parts[2]):  # the other may be of one that begins
        os.utime(part, (1e9, 1e9))
    done = models("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0")
    assert done.code == 0, done.err
    assert {tmp_path / "out.gguf", *parts[1:]} == set(tmp_path.iterdir())
    assert GGUFFile.open(tmp_path / "out.gguf").tensors


def test_two_write_one_file(models, source, tmp_path, monkeypatch):
    """The second is refused while the first writes; where that is done meanwhile, it stays."""
    out = tmp_path / "out.gguf"
    command = ["quantize", str(source), str(out), "--type", "q4_0"]
    with whole(out, overwrite=False):
        done = models(*command)
    assert out.read_bytes() == b""
    out.unlink()
    assert done.code == 2
    assert f"another process is writing {out}: wait until it has ended" in done.err
    linked = os.link

    def later(part, path):
        path.write_bytes(b"GGUF of another")
        linked(part, path)

    monkeypatch.setattr(os, "link", later)
    done = models(*command)
    assert done.code == 2
    assert f"{out} has been written by somebody else meanwhile, and stays" in done.err
    assert out.read_bytes() == b"GGUF of another"
    assert [file.name for file in tmp_path.iterdir()] == ["out.gguf"]


def test_a_link_that_leads_nowhere(models, source, tmp_path):
    """It is there, before anything is computed."""
    out = tmp_path / "out.gguf"
    out.symlink_to(tmp_path / "absent")
    done = models("quantize", str(source), str(out), "--type", "q4_0")
    assert done.code == 2
    assert f"{out} exists: give another name" in done.err


def test_long_names(models, source, tmp_path):
    """Files whose names begin alike are two, and a name may be as long as the disk lets it be."""
    one, other = (tmp_path / f"{'x' * 240}{n}.gguf" for n in "12")
    with whole(one, overwrite=False) as file:
        file.write(b"GGUF")
        done = models("quantize", str(source), str(other), "--type", "q4_0")
        assert done.code == 0, done.err
    assert {one, other} == set(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.EPERM])
def test_a_disk_without_links_and_locks(models, source, tmp_path, monkeypatch, number):
    """FAT and some network disks know neither: a file is written there all the same."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("propolis_workers.models.parts.fcntl.flock", refuse)
    done = models("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4_0")
    assert done.code == 0, done.err
    assert [file.name for file in tmp_path.iterdir()] == ["out.gguf"]


def test_no_standard_output(models, source, tmp_path, monkeypatch):
    """``-`` is no file of that name."""
    monkeypatch.chdir(tmp_path)
    done = models("quantize", str(source), "-", "--type", "q4_0")
    assert done.code == 2
    assert "a model cannot be written to the standard output" in done.err
    assert [] == list(tmp_path.iterdir())
