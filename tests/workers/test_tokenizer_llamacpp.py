"""The real vocabularies that llama.cpp keeps, with texts and the ids that are expected of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.weights.gguf import GGUFFile


pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
PINNED = "llama-cpp-python==0.3.36"
BUILD = ROOT / "build/llama-cpp"
BETWEEN = "\n__ggml_vocab_test__\n"

GOLDEN = json.loads((ROOT / "tests/data/tokenizers/llamacpp.json").read_text(encoding="utf-8"))

# How many texts each has; none where llama.cpp keeps the vocabulary alone.
TEXTS = {
    "aquila": 0,
    "baichuan": 0,
    "command-r": 46,
    "deepseek-coder": 46,
    "deepseek-llm": 46,
    "falcon": 46,
    "gemma-4": 46,
    "gpt-2": 46,
    "gpt-neox": 0,
    "llama-bpe": 46,
    "llama-spm": 46,
    "mpt": 46,
    "nomic-bert-moe": 0,
    "phi-3": 46,
    "qwen2": 46,
    "qwen35": 50,
    "refact": 46,
    "starcoder": 46,
}
LOSSY = {"nomic-bert-moe"}  # its normalisation rewrites, and some characters it does not know


def unpacked() -> Path | str:
    """Return the folder with the vocabularies, or why there is none; download it once."""
    given = os.environ.get("PROPOLIS_LLAMA_CPP")
    if given:
        found = Path(given) / "models"
        return found if found.is_dir() else f"PROPOLIS_LLAMA_CPP: {found} is no folder"
    models = BUILD / "models"
    if models.is_dir():
        return models
    if importlib.util.find_spec("scikit_build_core") is None:
        return "scikit-build-core is not installed: `make oracles` installs it"
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", folder, PINNED]
        done = subprocess.run([*pip, *source], capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or not archives:
            return f"{PINNED} cannot be downloaded: {' '.join(done.stderr.split())[-300:]}"
        unfinished = Path(folder) / "models"
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                if "/vendor/llama.cpp/models/ggml-vocab-" in member.name and member.isfile():
                    member.name = Path(member.name).name
                    archive.extract(member, unfinished, filter="data")
        try:
            unfinished.rename(models)  # whoever looks finds all of them or none
        except OSError:
            if not models.is_dir():  # else another process was first
                raise
    return models


@pytest.fixture(scope="module")
def models() -> Path:
    """The vocabularies; without them the tests are skipped, or fail."""
    found = unpacked()
    if isinstance(found, str):
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            pytest.fail(found)
        pytest.skip(found)
    return found


@cache
def loaded(models: Path, name: str) -> Tokenizer:
    """Return the tokenizer of one vocabulary."""
    return Tokenizer.from_gguf(GGUFFile.open(models / f"ggml-vocab-{name}.gguf").metadata)


def cases(models: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return the texts of one vocabulary and what they become."""
    path = models / f"ggml-vocab-{name}.gguf.inp"
    if not path.is_file():
        return []
    texts = path.read_bytes().decode().split(BETWEEN)
    lines = path.with_suffix(".out").read_text(encoding="utf-8").splitlines()
    ids = [[int(number) for number in line.split()] for line in lines]
    return list(zip(texts[: len(ids)], ids, strict=True))  # the last may end in a separator


@pytest.mark.parametrize("name", TEXTS)
def test_ids(models, name):
    """Every text becomes the ids that llama.cpp expects of itself, special tokens unmatched."""
    tokenizer = loaded(models, name)
    found = cases(models, name)
    assert len(found) == TEXTS[name]
    wrong = [text for text, ids in found if tokenizer.encode(text, parse_special=False) != ids]
    assert wrong == []


@pytest.mark.parametrize("name", TEXTS)
def test_golden(models, name):
    """So do texts of ours, special tokens unmatched, and matched with what the file adds."""
    tokenizer = loaded(models, name)
    for text, (plain, special) in zip(GOLDEN["texts"], GOLDEN["vocabularies"][name], strict=True):
        assert plain == joined(tokenizer.encode(text, parse_special=False))
        assert special == joined(tokenizer.encode(text, add_special=True))


@pytest.mark.parametrize("pre", GOLDEN["pre"])
def test_pre_tokenizers(models, pre):
    """Text is split as by llama.cpp under each name, whichever the vocabulary."""
    metadata = GGUFFile.open(models / "ggml-vocab-gpt-2.gguf").metadata
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": pre})
    for text, (ids,) in zip(GOLDEN["texts"], GOLDEN["pre"][pre], strict=True):
        assert ids == joined(tokenizer.encode(text, parse_special=False))


def joined(ids: list[int]) -> str:
    """Return ids as the golden file has them."""
    return " ".join(map(str, ids))


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - LOSSY))
def test_roundtrip(models, name):
    """Texts of every vocabulary come back from every other, at once and token by token."""
    tokenizer = loaded(models, name)
    texts = {text for other in TEXTS for text, _ in cases(models, other)}
    for text in sorted(texts):
        ids = tokenizer.encode(text, parse_special=False)
        assert text == tokenizer.decode(ids)
        detokenizer = Detokenizer(tokenizer)
        shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert shown in {text, f" {text}"}


def test_all_are_known(models):
    """Those of word pieces alone are refused, in one line that says what is supported."""
    found = {path.stem.removeprefix("ggml-vocab-") for path in models.glob("ggml-vocab-*.gguf")}
    assert found - TEXTS.keys() == {"bert-bge"}
    with pytest.raises(UnsupportedModelError, match="'bert' is not supported; supported: 'gemma4'"):
        loaded(models, "bert-bge")
