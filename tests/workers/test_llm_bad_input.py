from __future__ import annotations

import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from patience import patience

from propolis.cli import main
from propolis.errors import ArgumentTypeError
from propolis.errors import UsageError
from propolis_workers.llm import LLM
from propolis_workers.llm import chat_template
from propolis_workers.llm.conversation import Conversation
from propolis_workers.llm.tokenizer import Tokenizer


# Enough to import everything and to run the tiny model; far below what hostile files claim.
MEMORY = 4 << 30
PROPOLIS = (sys.executable, "-c", "from propolis.cli import main; main()", "llm")
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
CYCLIC = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
BOMB = "{% set ns = namespace(x=['ab']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
BOMB += "{% endfor %}{{ ns.x }}"
HUGE = 2**63


@pytest.fixture
def fails(capsys, monkeypatch):
    """Return a function that runs a command and checks that it fails as all must."""
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)

    def run(*arguments: str) -> str:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        with pytest.raises(SystemExit) as exit_info:
            main(["llm", *arguments])
        out, err = capsys.readouterr()
        assert (2, "") == (exit_info.value.code, out)
        notes = ("loaded ", "placement: ", "weights: ")
        lines = [line for line in err.splitlines() if not line.startswith(notes)]
        assert 1 == len(lines), err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in err
        assert len(lines[0]) < 1000
        assert time.process_time() - start < 10
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 256 * 1024  # KiB
        return lines[0]

    return run


@pytest.fixture
def patched(tiny_gguf, tmp_path):
    """Return a function that writes the tiny file with bytes replaced, or cut off."""

    def write(*changes: tuple[int | bytes, bytes], keep: int | None = None) -> str:
        content = bytearray(tiny_gguf.read_bytes()[:keep])
        for where, raw in changes:
            offset = where if isinstance(where, int) else content.index(where) + len(where)
            content[offset : offset + len(raw)] = raw
        path = tmp_path / "patched.gguf"
        path.write_bytes(content)
        return str(path)

    return write


def u64(value: int) -> bytes:
    """An unsigned 64-bit integer, as GGUF files hold it."""
    return struct.pack("<Q", value)


def u32(value: int) -> bytes:
    """An unsigned 32-bit integer, as GGUF files hold it."""
    return struct.pack("<I", value)


# A tensor's description: name, 2 dimensions, type, offset.
NORM = b"output_norm.weight"
GATE = b"blk.1.ffn_gate.weight"
PATCHES = {
    "magic": ([(0, b"GGML")], "begins with b'GGML'"),
    "old magic": ([(0, b"lmgg")], "from before GGUF"),
    "version": ([(4, u32(99))], "GGUF version 99, supported: GGUF 2 and 3"),
    "big endian": ([(4, b"\0\0\0\3")], "big-endian"),
    "tensor count": ([(8, u64(HUGE))], f"claims {HUGE} tensors"),
    "tensor count, one more": ([(8, u64(22))], "patched.gguf: "),
    "pair count": ([(16, u64(HUGE))], f"claims {HUGE} metadata pairs"),
    "key length": ([(24, u64(HUGE))], "metadata key 0 at byte 32 is"),
    "string length": (
        [(b"general.architecture\x08\0\0\0", u64(HUGE))],
        "a string in the value of 'general.architecture'",
    ),
    "array length": (
        [(b"tokenizer.ggml.tokens\x09\0\0\0\x08\0\0\0", u64(HUGE))],
        "claims 9223372036854775808 elements",
    ),
    "metadata type": ([(b"llama.block_count", u32(77))], "metadata type 77, known: 0 to 12"),
    "dimensions": ([(NORM, u32(9))], "has 9 dimensions"),
    "size": ([(NORM, u32(1) + u64(HUGE - 1))], "output_norm.weight"),
    "size, a little": ([(NORM, u32(1) + u64(64))], "overlap"),
    "tensor type": ([(NORM, u32(1) + u64(32) + u32(999))], "ggml type 999"),
    "unread tensor type": ([(NORM, u32(1) + u64(32) + u32(16))], "ggml type 16 (iq2_xxs)"),
    "offset": ([(NORM, u32(1) + u64(32) + u32(0) + u64(HUGE))], "the file has"),
    "odd offset": ([(NORM, u32(1) + u64(32) + u32(0) + u64(1))], "no multiple of the alignment"),
    "shape": ([(GATE, u32(2) + u64(64) + u64(32))], "has shape (32, 64), the model's settings say"),
    "layers": ([(b"llama.block_count\x04\0\0\0", u32(3))], "tensor blk.2.attn_norm.weight is mis"),
    "few layers": (
        [(b"llama.block_count\x04\0\0\0", u32(1))],
        "llama.block_count is '1', and the weights have 2: one is of another model",
    ),
    "many layers": ([(b"llama.block_count\x04\0\0\0", u32(2**32 - 1))], "supported: 1 to 4096"),
    "heads": ([(b"attention.head_count\x04\0\0\0", u32(2**31))], "do not describe a transformer"),
    "more heads": ([(b"attention.head_count\x04\0\0\0", u32(8))], "attn_k.weight has shape"),
    "no heads": ([(b"attention.head_count_kv\x04\0\0\0", u32(0))], "describe a transformer"),
    "no context": ([(b"context_length\x04\0\0\0", u32(0))], "describe a transformer"),
    "end token": ([(b"eos_token_id\x04\0\0\0", u32(5000))], "eos_token_id is 5000, outside"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patched(fails, patched, name):
    """A GGUF file with one lie in its header is refused, and the lie named."""
    changes, message = PATCHES[name]
    assert message in fails("generate", "hi", "-m", patched(*changes))


def test_truncated(fails, patched, tiny_gguf):
    """So is one that ends anywhere too early."""
    size = tiny_gguf.stat().st_size
    for keep in (1, 3, 4, 8, 23, 24, 100, 1000, 5000, size // 2, size - 200):
        error = fails("generate", "hi", "-m", patched(keep=keep))
        assert "patched.gguf: " in error
    Path(patched()).write_bytes(b"")
    assert "is empty (0 bytes)" in fails("generate", "hi", "-m", patched(keep=0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": None}, "has no tokenizer: tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"tokenizer.ggml.pre": "other"}, "pre-tokenizer 'other' is not supported"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "token 0 is there again as 1"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab' is not two tokens"),
        ({"llama.context_length": 0}, "context_length: 0"),
        ({"tokenizer.chat_template": None}, "m.gguf has no chat template: give it raw text"),
        ({"tokenizer.chat_template": ENDLESS}, "the chat template asks for too much"),
        ({"tokenizer.chat_template": CYCLIC}, "the chat template "),
        ({"tokenizer.chat_template": BOMB}, "the chat template asks for too much"),
        ({"tokenizer.chat_template": "{% for %}"}, "template cannot be compiled in line 1"),
        (
            {"tokenizer.chat_template": "{% include 'x' %}"},
            "'x' is refused: a chat template stands alone",
        ),
        ({"tokenizer.chat_template": "{{ [].append }}{{ ''.__class__ }}"}, "the chat template can"),
        ({"tokenizer.chat_template": ""}, "the prompt is empty"),
    ],
)
def test_metadata(fails, tiny, tmp_path, changes, message):
    """What a file says of its text is checked too, and a template cannot run for ever."""
    path = tiny.gguf(tmp_path / "m.gguf", metadata=changes)
    error = fails("generate", "hi", "-n", "2", "-m", str(path))
    assert message in error
    assert "tokenizer.chat_template" in changes or "m.gguf: " in error  # a short name chose it


def test_architecture(fails, tiny, tmp_path):
    """An architecture that no worker runs is named, with those there are."""
    path = tiny.gguf(tmp_path / "m.gguf", architecture="mamba")
    error = fails("generate", "hi", "-m", str(path))
    assert "m.gguf: architecture 'mamba' is not supported; supported: command-r, " in error


def test_weights(fails, tiny, tmp_path):
    """Weights that give no numbers are found when they do."""
    broken = {"output_norm.weight": np.full(32, np.nan, np.float32)}
    path = tiny.gguf(tmp_path / "m.gguf", tensors=broken)
    error = fails("generate", "hi", "-m", str(path))
    assert error.startswith("error: logits contain NaN; the ops were served by cpu_ref (propolis-")
    assert f"`propolis drift -m {path} --device cpu` finds the op that is wrong" in error


def test_a_plugin_that_gives_nan(propolis_with, tiny_gguf):
    """The plugins that served are named, and the command has what chose them."""
    err = propolis_with(
        "rms_norm",
        "x, weight, /, eps=1e-5",
        *("--op", "rms_norm=wrong", "--numerics", "exact"),
        *("llm", "generate", "hi", "-m", str(tiny_gguf)),
    )
    assert "served by cpu_ref (propolis-cpu-ref 0.1.0), wrong (wrong-dist 1.0): " in err
    chosen = "--numerics exact --op rms_norm=wrong"
    assert f"`propolis {chosen} drift -m {tiny_gguf} --device cpu` finds" in err


def test_vocabulary_beyond_the_embedding(fails, tiny, tmp_path):
    """A token that has no embedding is an error where it is used."""
    short = {name: tiny.gguf_tensors[name][:200] for name in ("token_embd.weight", "output.weight")}
    path = tiny.gguf(tmp_path / "m.gguf", tensors=short)
    error = fails("generate", "hi", "-m", str(path))
    assert "token 265 ('<|im_end|>') has no embedding: " in error
    assert "the tokenizer has 266 tokens, the weights 200" in error


def test_long_context_claimed(tiny, tmp_path):
    """A claimed context of any length costs nothing until it is used."""
    path = tiny.gguf(tmp_path / "m.gguf", metadata={"llama.context_length": 2**28})
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list(LLM.load(path).complete("hi", max_tokens=2))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 64 * 1024


FOLDERS = {
    "config missing": ("config.json", None, "config.json is missing or empty; get the"),
    "config of another": ("config.json", "{}", "config.json is missing or empty"),
    "config is a list": ("config.json", "[]", "config.json: holds a JSON list"),
    "config is deep": ("config.json", "[" * 100_000, "config.json: its JSON"),
    "config is no JSON": ("config.json", "x", "config.json: its JSON cannot be read"),
    "tokenizer missing": ("tokenizer.json", None, "has no tokenizer.json; looked for it,"),
    "tokenizer of another": ("tokenizer.json", "{}", "a None model with a None decoder"),
    "tokenizer is no JSON": ("tokenizer.json", "x", "tokenizer.json is not JSON"),
    "weights missing": ("model.safetensors", None, "no model.safetensors or diffusion_pytorch_"),
    "weights are text": ("model.safetensors", "hello, world", "claims a header of"),
    "weights are a pointer": ("model.safetensors", "version https://git-lfs.x/1", "Git LFS"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folder(fails, tiny, tmp_path, name):
    """A folder with a file that is missing or no good is refused, and the file named."""
    file, content, message = FOLDERS[name]
    folder = tiny.folder(tmp_path / "m")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content, encoding="utf-8")
    assert message in fails("generate", "hi", "-m", str(folder))


def test_paths(fails, tmp_path):
    """A path that leads to no model says what is there instead."""
    assert "there is no such file" in fails("generate", "hi", "-m", str(tmp_path / "x.gguf"))
    assert "there is no such file" in fails("chat", "-m", str(tmp_path / "nobody"))
    assert "no model.safetensors" in fails("generate", "hi", "-m", str(tmp_path))
    (tmp_path / "a.gguf").touch()
    assert "give the file itself: 'a.gguf'?" in fails("generate", "hi", "-m", str(tmp_path))
    assert "is a pipe or device" in fails("generate", "hi", "-m", os.devnull)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is a pipe or device" in fails("generate", "hi", "-m", str(tmp_path / "pipe.gguf"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.gguf", "model"])
def test_pickle(fails, tmp_path, name):
    """A pickle is refused by its name or its content, and nothing in it runs."""

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harmed",))

    (tmp_path / name).write_bytes(pickle.dumps(Harm()))
    assert "a Python pickle" in fails("generate", "hi", "-m", str(tmp_path / name))
    if name.endswith((".bin", ".pt")):
        assert "a Python pickle" in fails("generate", "hi", "-m", str(tmp_path))
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x" * 200,), "the prompt takes 218 tokens, the context is 96: no room for an answer"),
        (("hi", "--context", "5"), "the context is 5: no room"),
        (("", "--raw"), "the prompt is empty"),
        (("hi", "--device", "rocm:0"), "no device 'rocm:0'; present: cpu"),
        (("hi", "--device", "cpu:1"), "no device 'cpu:1'"),
        (("hi", "--device", "nonsense"), "no device 'nonsense'"),
        (("hi", "--threads", "-1"), "threads"),
        (("hi", "--temperature", "-1"), "temperature is -1.0; allowed: a finite number from 0"),
        (("hi", "--temperature", "nan"), "temperature is nan"),
        (("hi", "--top-k", "-1"), "top_k is -1; allowed: an integer from 0"),
        (("hi", "--top-p", "0"), "top_p is 0.0; allowed: a finite number above 0 to 1"),
        (("hi", "--min-p", "2"), "min_p is 2.0"),
        (("hi", "--repetition-penalty", "0"), "repetition_penalty is 0.0"),
        (("hi", "--seed", "-2"), "-2 is not in the range x>=-1"),
        (("hi", "--stop", ""), "a stop string is empty: every answer would end"),
        (("\udcff",), "PROMPT is not UTF-8: byte 0xff at 0"),
    ],
)
def test_values(fails, tiny_gguf, arguments, message):
    """A wrong value is named, with those allowed."""
    assert message in fails("generate", *arguments, "-m", str(tiny_gguf))


@pytest.mark.parametrize("prompt", [None, ["a", "b"], ("a",), [], b"a", 1])
@pytest.mark.parametrize("entry", ["complete", "say"])
def test_no_text(llm, monkeypatch, entry, prompt):
    """A batch, or nothing, in the place of a prompt is a TypeError at once, and one line."""
    call = llm.complete if entry == "complete" else Conversation(llm).say
    monkeypatch.setattr(Tokenizer, "encode", None)  # nothing may be computed
    with pytest.raises(TypeError, match=r"; supported: a text: give one, and each of several to"):
        call(prompt)
    with pytest.raises(UsageError, match=f" is {re.escape(repr(prompt))}; supported"):
        call(prompt)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages is None; supported: a list of messages: put a text into one"),
        ("hello", "messages is 'hello'; supported: a list of messages"),
        ([], "messages is empty: there is nothing to answer"),
        (["a", "b"], "message 0 is 'a'; a message is a mapping .* each of several conversations"),
        ([[{"role": "user", "content": "a"}]], r"message 0 is \[.*; a message is a mapping"),
        ([{"role": "user", "content": ["a", "b"]}], r"message 0 has \['a', 'b'\] as its content; "),
    ],
)
def test_no_conversation(llm, monkeypatch, messages, message):
    """So it is in the place of the messages of one conversation."""
    monkeypatch.setattr(Tokenizer, "encode", None)
    with pytest.raises(TypeError, match=f"^{message}") as caught:
        llm.chat(messages)
    assert isinstance(caught.value, UsageError)
    assert "\n" not in str(caught.value)


def test_unknown_role(llm):
    """A role that the model's template does not tell apart is refused when it is said."""
    with pytest.raises(
        UsageError, match=r"the role 'tool', which .*; supported: system, user, assis"
    ):
        llm.chat([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])


@pytest.mark.parametrize(
    "arguments",
    [
        ("hi", "--max-tokens", "0"),
        ("hi", "--context", "0"),
        ("hi", "--threads", "many"),
        ("hi", "--fallback", "perhaps"),
        ("hi", "--unknown"),
        ("hi", "there"),
        (),
    ],
)
def test_usage(capsys, arguments):
    """What click refuses has its usage, one line on what is wrong, and the same code."""
    with pytest.raises(SystemExit) as exit_info:
        main(["llm", "generate", *arguments])
    out, err = capsys.readouterr()
    assert (2, "") == (exit_info.value.code, out)
    assert 1 == sum(line.lower().startswith("error: ") for line in err.splitlines())


def test_debug(tmp_path, capsys):
    """--debug shows where an error came from, before the line that says what it is."""
    with pytest.raises(SystemExit) as exit_info:
        main(["--debug", "llm", "generate", "hi", "-m", str(tmp_path / "none")])
    out, err = capsys.readouterr()
    assert (2, "") == (exit_info.value.code, out)
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("template", [pytest.param(ENDLESS, marks=pytest.mark.slow), BOMB])
def test_process(tiny, tmp_path, template):
    """In a process of its own, with little memory, hostile files end it soon and orderly."""
    path = tiny.gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": template})
    run = subprocess.run(
        [*PROPOLIS, "generate", "hi", "-m", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert (2, "") == (run.returncode, run.stdout)
    assert "Traceback" not in run.stderr
    assert run.stderr.splitlines()[-1].startswith("error: the chat template asks for too much")


def test_params_of_another_type(tiny_gguf):
    """What draws tokens is no dictionary: the class is named."""
    llm = LLM.load(tiny_gguf)
    for ask in (
        llm.complete,
        lambda _, **more: llm.chat([{"role": "user", "content": "a"}], **more),
    ):
        with pytest.raises(ArgumentTypeError, match=r"params is a dict; supported: SamplingParams"):
            ask("a", params={"temperature": 1})
