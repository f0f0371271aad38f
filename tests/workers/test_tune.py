"""``propolis tune llm``: measured while a model runs, kept, and taken by the next process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from propolis import Config
from propolis import OpImpl
from propolis import Runtime
from propolis import dtypes
from propolis.cli import main
from propolis.records import Provenance
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine


@pytest.fixture
def run(capsys):
    """Run a command line; what it printed."""

    def of(*arguments: str) -> str:
        with pytest.raises(SystemExit) as done:
            main(arguments)
        said = capsys.readouterr()
        assert not done.value.code, said
        return said.out + said.err

    return of


@pytest.fixture
def quick_mul(monkeypatch):
    """A runtime has a slow ``silu_mul`` that goes first, and one that is the reference's."""
    found = Runtime._impls

    def impls(self, device):
        for impl in found(self, device):
            yield impl
            if impl.op == "silu_mul":

                def slow(*args, fn=impl.fn, **kwargs):
                    time.sleep(2e-3)
                    fn(*args, **kwargs)

                who = Provenance("stranger", "propolis-stranger", "1")
                more = {"dtypes": {dtypes.f32}, "priority": 50, "provenance": who}
                yield OpImpl(op="silu_mul", fn=slow, variant="slow", capture_safe=False, **more)

    monkeypatch.setattr(Runtime, "_impls", impls)


def test_what_has_no_room_is_not_measured(tiny_gguf, monkeypatch, capsys):
    """Before prompts are measured, and by the option that asks for too much."""
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_ref")
    with pytest.raises(SystemExit) as done:
        main(("tune", "llm", "-m", str(tiny_gguf), "--sequences", "200000000"))
    said = capsys.readouterr()
    assert done.value.code == 3
    assert "for 200000000 sequences needs " in said.err
    assert "--sequences" in said.err
    assert "of sizes up to" not in said.err


def test_what_cannot_be_kept_is_not_measured(tiny_gguf, tmp_path, monkeypatch, capsys):
    """A cache that cannot be written is found out before anything is measured."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_ref")
    with pytest.raises(SystemExit) as done:
        main(("tune", "llm", "-m", str(tiny_gguf), "--prompt", "8", "--sequences", "1"))
    said = capsys.readouterr()
    assert 2 == done.value.code
    assert "tuned.json cannot be written: " in said.err
    assert " of " not in said.err.partition("error: ")[0]


def test_sizes_that_cannot_be_drawn(tmp_path, monkeypatch, capsys):
    """They are found before a model is loaded, and nothing is said to be measured."""
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_ref")
    with pytest.raises(SystemExit) as done:
        main(("tune", "sd", "-W", "63"))
    said = capsys.readouterr()
    assert (2, "") == (done.value.code, said.out)
    assert said.err.startswith("error: width 63 is not a multiple of ")


@pytest.mark.usefixtures("quick_mul")
def test_prompts_that_fit(tiny_gguf, tmp_path, monkeypatch, run, capsys):
    """Usual lengths are cut to the model's context; who asks for more is told what fits."""
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    context = LLM.load(tiny_gguf).config.context_length
    run("tune", "llm", "-m", str(tiny_gguf), "--sequences", "1")
    with pytest.raises(SystemExit) as done:
        main(("tune", "llm", "-m", str(tiny_gguf), "--prompt", str(context)))
    assert done.value.code == 2
    assert f"--prompt {context} does not fit" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_mul")
def test_what_was_found_until_a_signal_is_kept(tiny_gguf, tmp_path, monkeypatch, run, capsys):
    """SIGTERM ends it as Ctrl-C does: what was measured before counts, and the signal is seen."""
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_ref")
    sent = []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    monkeypatch.setattr(BatchEngine, "step", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as done:
        main(("tune", "llm", "-m", str(tiny_gguf), "--prompt", "8", "--sequences", "2"))
    assert done.value.code == 130
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert "another is faster for " in capsys.readouterr().out
    assert "cpu_ref, " in run("tune", "show")


@pytest.mark.usefixtures("quick_mul")
def test_tune_llm(tiny_gguf, tmp_path, monkeypatch, run):
    """What is found is told, shown, explained and taken; until it is forgotten."""
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROPOLIS_PLUGINS", "cpu_ref")
    model = ("-m", str(tiny_gguf), "--prompt", "8", "--sequences", "2")
    said = run("tune", "llm", *model)
    assert "silu_mul of sizes up to " in said
    assert "another is faster for " in said
    assert "cpu_ref, " in run("tune", "show")
    assert '"plugin": "cpu_ref"' in run("tune", "show", "--json")
    assert "measured, for " in run("explain", "silu_mul", "--dtype", "f32")
    assert any(Runtime.start(Config.load()).tuned.rows())
    assert "forgotten" in run("tune", "forget")
    assert "nobody was measured faster" in run("tune", "show")
    assert "there is none" in run("tune", "forget")
    (tmp_path / "cache" / "tuned.json").write_text("{bad")
    with pytest.raises(SystemExit) as done:
        main(("tune", "show"))
    assert done.value.code == 2
    assert "forgotten" in run("tune", "forget")
