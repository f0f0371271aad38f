from __future__ import annotations

import dataclasses
import errno
import json
import os
import tempfile

import gguf
import numpy as np
import pytest
import tokenizers
from microscaled_model import microscaled_parts
from microscaled_model import write_microscaled
from small_vocabularies import BYTES
from small_vocabularies import CHARACTERS
from small_vocabularies import MERGES
from small_vocabularies import SPACE
from small_vocabularies import UNIONS
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import PROMPT
from tiny_families import Truth
from tiny_families import gguf_tensors
from tiny_families import write_folder
from tokenizers import decoders
from tokenizers import models as library
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from propolis import default_runtime
from propolis import dtypes
from propolis_workers.llm import LLM
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.models import build
from propolis_workers.llm.models import read_config
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.vocab.pre_tokenizers import PRE_TOKENIZERS
from propolis_workers.models import convert
from propolis_workers.models import parts
from propolis_workers.models import vocab_out
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


CONVERTED = (
    *("command_r", "command_r-plus", "deepseek", "deepseek-grouped", "deepseek-v3", "falcon"),
    *("falcon-grouped", "gemma", "gemma2", "gemma3", "glm4", "gpt_oss", "granite", "lfm2"),
    *("llama", "llama-biased", "mistral", "mixtral", "olmo2", "phi2", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2"),
)
TEXTS = ("Hello there, it's 12345!  \n\n x", "\u00fc\u4f60\u597d \U0001f600", "<|im_end|>a")


@pytest.fixture
def _no_vocabulary(monkeypatch):
    """The tiny families have none."""
    none = {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1]}
    monkeypatch.setattr(convert, "vocabulary_of", lambda _: none)


def made(folder, out, kind="f32"):
    """The file that a folder becomes, opened."""
    convert.convert(folder, out, kind, default_runtime().cpu)
    return GGUFFile.open(out)


def logits(source) -> np.ndarray:
    """Of a prompt's last token, from a file of either kind."""
    network = build(source, read_config(source), default_runtime().cpu)
    return Engine(network, 128).logits_of(IDS[:PROMPT])[-1]


@pytest.mark.usefixtures("_no_vocabulary")
@pytest.mark.parametrize("name", CONVERTED)
def test_families(tmp_path, name):
    """Tensors are named and arranged as the gguf library and llama.cpp's converter do."""
    truth = Truth.read(name)
    file = made(write_folder(tmp_path / "m", truth), tmp_path / "o.gguf")
    said = FAMILIES[name].gguf or FAMILIES[name.split("-")[0]].gguf
    assert file.metadata["general.architecture"] == said
    if FAMILIES[name].gguf:
        family = FAMILIES[name]
        if family.architecture == "deepseek":  # of whose files some are as older converters wrote
            family = dataclasses.replace(family, arrange=FAMILIES["deepseek-v3"].arrange)
        wanted = gguf_tensors(family, truth)
        assert wanted.keys() == file.tensors.keys()
        for key, values in wanted.items():
            found = file.data(key).view(np.float32).reshape(file.tensors[key].shape)
            np.testing.assert_array_equal(found, values, err_msg=key)
    assert logits(file) == pytest.approx(
        logits(SafetensorsFolder.open(tmp_path / "m")), rel=1e-4, abs=1e-4
    )


@pytest.mark.usefixtures("_no_vocabulary")
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {*CONVERTED}))
def test_refused(tmp_path, name):
    """What GGUF metadata cannot say, or is not written, is refused before a file is."""
    folder = write_folder(tmp_path / "m", Truth.read(name))
    with pytest.raises(convert.UnsupportedModelError, match="is not converted here"):
        made(folder, tmp_path / "o.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


SCALINGS = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
    "longrope": {
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.usefixtures("_no_vocabulary")
@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled(tmp_path, kind):
    """However rotations are scaled, the file says it: its logits are the folder's."""
    truth = Truth.read("llama")
    truth.config.pop("rope_parameters", None)
    scaling = {"rope_type": kind, **SCALINGS[kind]}
    truth.config.update({"rope_theta": 500.0, "rope_scaling": scaling})
    folder = write_folder(tmp_path / "m", truth)
    file = made(folder, tmp_path / "o.gguf")
    wanted = logits(SafetensorsFolder.open(folder))
    np.testing.assert_allclose(logits(file), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_command(models, tiny_folder, tmp_path, kind):
    """The command makes a file that answers as the folder does, and says its type."""
    out = tmp_path / "o.gguf"
    done = models("convert", str(tiny_folder), str(out), "--type", kind)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{out}: ")
    reader = gguf.GGUFReader(out)
    wanted = gguf.LlamaFileType.ALL_F32 if kind == "f32" else f"MOSTLY_{kind.upper()}"
    wanted = gguf.LlamaFileType[wanted] if isinstance(wanted, str) else wanted
    assert reader.fields["general.file_type"].contents() == wanted
    file = GGUFFile.open(out)
    assert file.tensors["blk.0.attn_q.weight"].dtype.name == kind
    assert file.tensors["output_norm.weight"].dtype is dtypes.f32
    one, two = LLM.load(tiny_folder), LLM.load(out)
    for text in TEXTS:
        assert one.tokenizer.encode(text) == two.tokenizer.encode(text)
        assert one.tokenizer.encode(text, add_special=True) == two.tokenizer.encode(
            text, add_special=True
        )
    assert one.tokenizer.chat_template == two.tokenizer.chat_template
    assert (one.tokenizer.bos_id, one.tokenizer.eos_ids) == (
        two.tokenizer.bos_id,
        two.tokenizer.eos_ids,
    )
    ids = [*range(60, 80)]
    error = one.engine().logits_of(ids) - two.engine().logits_of(ids)
    assert (error**2).mean() < {"f32": 1e-9, "f16": 1e-4, "bf16": 1e-2}[kind]


def test_type_of_most(models, tiny_folder, tmp_path):
    """Where no type is given, it is that of the folder's numbers."""
    out = tmp_path / "o.gguf"
    answer = json.loads(models("convert", str(tiny_folder), str(out), "--json").out)
    assert answer == {"path": str(out), "bytes": out.stat().st_size}
    assert GGUFFile.open(out).tensors["blk.0.attn_q.weight"].dtype is dtypes.f32
    assert "--overwrite" in models("convert", str(tiny_folder), str(out)).err


def test_overwrites_models_alone(models, tiny, tmp_path):
    """No part of the folder is replaced, nor a device or a pipe; an empty file is nobody's."""
    folder = tiny.folder(tmp_path / "m")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    weights = (folder / "model.safetensors").read_bytes()
    for out in (folder / "model.safetensors", folder / "config.json", tmp_path / "pipe"):
        done = models("convert", str(folder), str(out), "--overwrite")
        assert (done.code, f"{out} is no GGUF file" in done.err) == (2, True)
    assert (folder / "model.safetensors").read_bytes() == weights
    for _ in range(2):
        assert models("convert", str(folder), str(tmp_path / "empty"), "--overwrite").code == 0


def test_then_quantize(models, tiny_folder, tmp_path):
    """What was converted can be quantised, and the result runs."""
    models("convert", str(tiny_folder), str(tmp_path / "o.gguf"))
    done = models("quantize", str(tmp_path / "o.gguf"), str(tmp_path / "q.gguf"), "--type", "q8_0")
    assert done.code == 0, done.err
    assert LLM.load(tmp_path / "q.gguf").config.vocab_size == 266


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "gpt-2", "deepseek-llm"])
def test_pre_tokenizer(tmp_path, name):
    """The rule that splits texts is found by what it does to them."""
    rule = PRE_TOKENIZERS[name]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([*alphabet, "th", "the"])}
    merges = [("t", "h"), ("th", "e")]
    built = tokenizers.Tokenizer(library.BPE(vocab, merges, ignore_merges=rule.whole_words))
    splits = [pre_tokenizers.Split(tokenizers.Regex(one), "isolated") for one in rule.splits]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
    built.decoder = decoders.ByteLevel()
    built.save(str(tmp_path / "tokenizer.json"))
    said = vocab_out.vocabulary_of(tmp_path)
    assert PRE_TOKENIZERS[said["tokenizer.ggml.pre"]].splits == rule.splits
    made = Tokenizer.from_gguf(said)
    ours = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert made.encode(text) == ours.encode(text)


@pytest.mark.parametrize("kind", ["llama2", "mistral", "gemma"])
def test_sentence_piece(tmp_path, kind):
    """A vocabulary of SentencePiece's kind gives the same tokens from the file, or is refused."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *CHARACTERS, *UNIONS]
    vocab = {text: index for index, text in enumerate(tokens)}
    model = library.BPE(vocab, MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    built = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "llama2":
        built.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    elif kind == "gemma":
        built.normalizer = spaces
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    strip = [] if kind == "gemma" else [decoders.Strip(" ", 1, 0)]
    built.decoder = decoders.Sequence([*back, *strip])
    built.add_special_tokens(["<unk>", "<s>", "</s>"])
    built.save(str(tmp_path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    if kind == "mistral":  # it adds no space before one, and GGUF files have no word for that
        with pytest.raises(convert.UnsupportedModelError, match="gives other tokens than a GGUF"):
            vocab_out.vocabulary_of(tmp_path)
        return
    said = vocab_out.vocabulary_of(tmp_path)
    assert said["tokenizer.ggml.model"] == "llama"
    assert said["tokenizer.ggml.token_type"][:5] == [2, 3, 3, 6, 6]
    made, ours = Tokenizer.from_gguf(said), Tokenizer.from_folder(tmp_path)
    for text in ("the then there", "a the", "x\n\ty", TEXTS[1]):
        assert made.encode(text) == ours.encode(text), text
        assert made.decode(made.encode(text)) == ours.decode(ours.encode(text))
    assert (made.bos_id, made.eos_id) == (1, 2)


@pytest.mark.usefixtures("_no_vocabulary")
@pytest.mark.parametrize(
    ("family", "tensor", "change"),
    [
        ("mixtral", "block_sparse_moe.experts.1.w2", lambda x: x[:, :-1]),
        ("mixtral", "block_sparse_moe.experts.3.w1", lambda x: x[:-1]),
        ("llama", "self_attn.q_proj", lambda x: x[:-1]),
        ("llama", "self_attn.k_proj", lambda x: x[0][:-1]),
    ],
)
def test_odd_shapes(tmp_path, family, tensor, change):
    """A tensor of another shape than the file would say is named before anything is written."""
    truth = Truth.read(family)
    name = f"model.layers.0.{tensor}.weight"
    weights = {**truth.weights, name: np.ascontiguousarray(change(truth.weights[name]))}
    folder = write_folder(tmp_path / "m", truth, weights)
    with pytest.raises(convert.ModelError, match=f"tensor {name} has shape"):
        made(folder, tmp_path / "o.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(("module", "failing"), [(tempfile, "TemporaryDirectory"), (parts, "_put")])
def test_disk_refuses(models, tiny_folder, tmp_path, monkeypatch, module, failing):
    """What the disk refuses, for the sketch beside the file too, is one line; nothing is left."""
    out = tmp_path / "out/o.gguf"
    out.parent.mkdir()
    places = []

    def refuse(*paths, **other):
        places.append(other["dir"] if "dir" in other else paths[1].parent)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(module, failing, refuse)
    done = models("convert", str(tiny_folder), str(out))
    assert done.code == 2
    assert f"{out} cannot be written (Read-only file system)" in done.err
    assert places == [out.parent]
    assert not list(out.parent.iterdir())
    assert models("convert", str(tiny_folder), str(tmp_path / ("x" * 5000))).code == 2


@pytest.mark.parametrize(
    ("file", "key", "value", "said"),
    [
        ("config.json", "rope_theta", 1e300, "llama.rope.freq_base cannot be said"),
        ("tokenizer_config.json", "chat_template", "a\ud800", "chat_template cannot be said"),
    ],
)
def test_unsayable(models, tiny, tmp_path, file, key, value, said):
    """Numbers and texts that the format cannot hold are named; a folder's name is made to fit."""
    folder = tiny.folder(tmp_path / "m\udcff")
    out = tmp_path / "o.gguf"
    assert models("convert", str(folder), str(out)).code == 0
    assert GGUFFile.open(out).metadata["general.name"] == "m\ufffd"
    given = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps({**given, key: value}), encoding="utf-8")
    done = models("convert", str(folder), str(out), "--overwrite")
    assert done.code == 2
    assert said in done.err


def test_vocabularies_refused(tmp_path, tiny_folder):
    """A vocabulary of another kind, or one with more tokens than rows, is refused by name."""
    built = tokenizers.Tokenizer(library.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    built.decoder = decoders.Metaspace()
    built.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(convert.ModelError, match="kind 'Unigram'; supported for GGUF: BPE"):
        vocab_out.vocabulary_of(tmp_path)
    with pytest.raises(convert.ModelError, match="266 tokens, the embedding 9 rows"):
        vocab_out.padded(vocab_out.vocabulary_of(tiny_folder), 9)


@pytest.mark.usefixtures("_no_vocabulary")
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_blocks_are_kept(tmp_path, kind):
    """Experts in MXFP4 go into the file as they are, bit for bit, and give the same logits."""
    import gguf
    from safetensors.numpy import load_file

    folder = write_microscaled(tmp_path / "m", Truth.read("gpt_oss"))
    file = made(folder, tmp_path / "o.gguf", kind)
    info = file.tensors["blk.0.ffn_down_exps.weight"]
    assert info.dtype is dtypes.mxfp4
    held = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    again = microscaled_parts(file.data(info.name).reshape(*info.shape[:-1], -1))
    assert (again[0] == held[f"{name}_blocks"]).all()
    assert (again[1] == held[f"{name}_scales"]).all()
    assert gguf.GGUFReader(tmp_path / "o.gguf").fields
    source = SafetensorsFolder.open(folder)
    tolerance = {"f16": 1e-2, "f32": 1e-5}[kind]
    np.testing.assert_allclose(logits(file), logits(source), rtol=tolerance, atol=tolerance)
