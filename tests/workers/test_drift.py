from __future__ import annotations

import json
import math
import os
import shutil
import sys
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from propolis import OpImpl
from propolis import Provenance
from propolis import dtypes
from propolis.cli import main
from propolis.config import Config
from propolis.dispatch import DispatchTable
from propolis.runtime import Runtime
from propolis_conformance.drift import Drift
from propolis_conformance.drift.facts import oracle
from propolis_workers.llm import LLM
from propolis_workers.llm.drift import run


PROMPT = "the an on"


def slightly_wrong(layer, per_step=2):
    """An implementation of silu_mul that is off by one part in 10,000, in one layer alone."""
    calls = []

    def silu_mul(out, gate, up, /):
        g = gate.array.astype(np.float64)
        out.array[...] = g / (1 + np.exp(-g)) * up.array
        calls.append(1)
        if (len(calls) - 1) % per_step == layer:
            out.array[...] *= np.float32(1.0001)

    return OpImpl(
        op="silu_mul",
        fn=silu_mul,
        dtypes={dtypes.f32},
        priority=100,
        provenance=Provenance("wrong", "dist-wrong", "1.0"),
    )


@pytest.fixture
def watched(tiny_gguf):
    """Run the tiny model with these implementations too, and watch it."""

    def make(*impls, tokens=3, sample=1.0, path=tiny_gguf):
        runtime = Runtime.start(Config.load())
        every = [i for impls_ in runtime.cpu.table._impls.values() for i in impls_]
        runtime.cpu.table = DispatchTable(runtime.cpu, [*impls, *every], runtime.cpu)
        llm = LLM.load(path, runtime=runtime)
        drift = Drift(runtime.cpu, oracle(runtime), sample=sample)
        ids = llm.tokenizer.encode(PROMPT)
        return llm, ids, drift, run(llm, ids, drift, tokens=tokens)

    return make


def test_the_reference_is_within_tolerance(watched):
    """Every op in every layer of the prompt's and the tokens' steps is judged, and right."""
    _, _, drift, drawn = watched()
    assert (len(drawn), drift.failed) == (3, 0)
    assert [*drift.by_layer()] == ["embedding", "0", "1", "norm", "output"]
    cells = drift.by_op()
    assert {cell.calls for op, cell in cells.items() if op == "attention"} == {3 * 2}
    assert all(cell.checked == cell.calls and not cell.unknown for cell in cells.values())
    named = {"rms_norm", "add_rms_norm", "linear", "rope", "kv_append", "attention", "silu_mul"}
    assert named <= {*cells}


@pytest.mark.parametrize("layer", [0, 1])
def test_a_wrong_implementation_is_found(watched, layer):
    """At its op, in its layer, by its plugin; the layers after it are not blamed."""
    _, _, drift, _ = watched(slightly_wrong(layer))
    failed = {(op, at): cell.failed for (op, at), cell in drift.cells.items() if cell.failed}
    assert failed == {("silu_mul", str(layer)): 3}
    worst = drift.by_op()["silu_mul"]
    assert (worst.layer, worst.by) == (str(layer), "wrong (dist-wrong 1.0)")
    assert worst.errors.max_rel == pytest.approx(1e-4, rel=0.01)
    assert next(iter(drift.by_op())) == "silu_mul"


def test_what_comes_after_is_not_blamed(watched):
    """Norms that are far too large drive other ops beyond f32; these are not named."""

    def add_rms_norm(total, out, x, residual, weight, /, eps=1e-5):
        total.array[...] = x.array + residual.array
        rows = total.array.astype(np.float64)
        size = np.sqrt(np.mean(rows * rows, -1, keepdims=True) + eps)
        out.array[...] = 100 * rows / size * weight.array

    source = Provenance("wrong", "dist-wrong", "1.0")
    impl = OpImpl(
        op="add_rms_norm",
        fn=add_rms_norm,
        dtypes={dtypes.f32},
        priority=100,
        provenance=source,
    )
    _, _, drift, _ = watched(impl, tokens=4)
    cells = drift.by_op()
    # All norms of two layers, and the last one, but for the first: nothing is added before it.
    assert cells["add_rms_norm"].failed == cells["add_rms_norm"].calls == 4 * 4
    assert drift.failed == 4 * 4


def test_watching_changes_nothing(watched, llm):
    """The tokens are those of a captured decode, and afterwards the model is as before."""
    watched_llm, ids, drift, drawn = watched(tokens=5)
    engine = llm.engine()
    logits, expected = engine.prefill(ids), []
    for _ in range(5):
        expected.append(int(np.argmax(logits[: llm.tokenizer.vocab_size])))
        logits = engine.decode(expected[-1])
    assert expected == drawn
    model = watched_llm.model
    kinds = {type(part).__name__ for part in (model.embedding, model.norm, *model.blocks)}
    assert kinds == {"Embedding", "RMSNorm", "Block"}
    assert model.device.table.bound is model.device.table.plain
    assert drift.layer == ""


def test_a_model_that_fails_half_way_is_put_back(watched, monkeypatch):
    """Whatever ends the run, the model's parts are its own again."""
    llm, ids, drift, _ = watched()
    inner = llm.model.blocks[1]
    monkeypatch.setattr(type(inner), "__call__", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(llm, ids, drift, tokens=1)
    assert llm.model.blocks[1] is inner
    assert drift.layer == ""


# -- the command -----------------------------------------------------------------

PLUGIN = """
import numpy as np
from propolis import OpImpl, PluginInfo, dtypes, hookimpl
calls = []
def silu_mul(out, gate, up, /):
    g = gate.array.astype(np.float64)
    out.array[...] = g / (1 + np.exp(-g)) * up.array
    calls.append(1)
    if len(calls) % 2 == 0:
        out.array[...] *= np.float32(1.0001)
@hookimpl
def propolis_plugin():
    return PluginInfo("wrong", api=1, description="wrong on purpose")
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="silu_mul", fn=silu_mul, dtypes={dtypes.f32}, priority=100)
"""


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """Install a plugin that is wrong in every second layer."""
    folder = tmp_path / "site"
    info = folder / "wrong_dist-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "drift_wrong.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-dist\nVersion: 1.0\n")
    (info / "RECORD").write_text("wrong_dist,,\n")
    (info / "entry_points.txt").write_text("[propolis.plugins]\nwrong = drift_wrong\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    sys.modules.pop("drift_wrong", None)


@pytest.fixture
def propolis(capsys, monkeypatch, tiny_gguf):
    """Run a command in this process, on the tiny model."""
    monkeypatch.setenv("PROPOLIS_MODEL", str(tiny_gguf))

    def command(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(arguments)
        said = capsys.readouterr()
        return SimpleNamespace(code=done.value.code or 0, out=said.out, err=said.err)

    return command


def test_the_command(propolis):
    """Two tables, the worst of each op and of each layer, and a sum."""
    done = propolis("drift", PROMPT, "-n", "2")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["op", "judged", "failed"]
    assert any(line.startswith("attention ") and "cpu_ref" in line for line in lines)
    layers = [line.split("  ")[0] for line in lines if line.startswith("layer ")]
    assert layers == ["layer", "layer 0", "layer 1"]
    assert " calls on cpu judged, " in lines[-1]
    assert lines[-1].endswith(": 0 beyond tolerance")
    assert "loaded tiny.gguf" in done.err


@pytest.mark.usefixtures("wrong")
def test_from_drift_to_replay(propolis, tmp_path):
    """The wrong op fails the command and is named; its saved call fails again, elsewhere not."""
    done = propolis("drift", PROMPT, "--save", str(tmp_path / "calls"))
    assert done.code == 1
    message = "beyond tolerance: silu_mul by wrong (wrong-dist 1.0) in layer 1: "
    assert any(line.startswith(message) for line in done.out.splitlines())
    saved = tmp_path / "calls" / "silu_mul-f32.npz"
    assert f"saved: the worst silu_mul: {saved}" in done.out
    sys.modules["drift_wrong"].calls.append(1)  # the next call is wrong, as the saved one was
    again = propolis("replay", "--here", str(saved))
    assert again.code == 1
    assert "saved from cpu, wrong (wrong-dist 1.0), layer 1" in again.out
    assert "ran on cpu by wrong" in again.out
    assert propolis("--op", "silu_mul=cpu_ref", "replay", "--here", str(saved)).code == 0
    assert propolis("replay", "--here", str(tmp_path / "calls" / "attention-f32.npz")).code == 0


@pytest.mark.usefixtures("wrong")
def test_for_machines(propolis):
    """Every number of every op in every layer, with nothing else on either stream."""
    done = propolis("drift", PROMPT, "--json", "--sample", "0", "--seed", "3")
    found = json.loads(done.out, parse_constant=pytest.fail)
    assert (done.code, done.err) == (1, "")
    assert (found["model"], found["device"], found["sample"]) == ("tiny.gguf", "cpu", 0)
    assert found["failed"] == found["layers"]["1"]["silu_mul"]["failed"] > 0
    assert found["layers"]["0"]["silu_mul"]["failed"] == 0
    worst = found["ops"]["silu_mul"]
    assert (worst["layer"], worst["by"]) == ("1", "wrong (wrong-dist 1.0)")
    assert math.isclose(worst["max_rel"], 1e-4, rel_tol=0.01)
    assert all(cell["checked"] >= 1 for cell in found["ops"].values())


def test_what_cannot_be_used(propolis, tmp_path):
    """One line, before a model is loaded where that is possible."""
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (("--save", str(tmp_path / "file")), "is a file"),
        (("--tokens", "0"), "'-n' / '--tokens'"),
        (("--sample", "2"), "'--sample'"),
        (("-m", str(tmp_path / "none.gguf")), "none.gguf"),
        (("x" * 500,), "tokens"),
    ):
        done = propolis("drift", *arguments)
        assert done.code == 2
        assert said in done.err


@pytest.mark.model
@pytest.mark.slow
def test_the_packaged_model(monkeypatch, capsys):
    """SmolLM2's own numbers: every op in every layer is judged, and the reference is right."""
    monkeypatch.delenv("PROPOLIS_MODEL", raising=False)
    with pytest.raises(SystemExit) as done:
        main(["drift", "--json", "-n", "2", "--sample", "0"])
    found = json.loads(capsys.readouterr().out)
    assert (done.value.code or 0, found["failed"]) == (0, 0)
    assert [*found["layers"]] == ["embedding", *map(str, range(30)), "norm", "output"]
    for layer in map(str, range(30)):
        cells = found["layers"][layer]
        # The last layer's feed-forward sees one token from the start: one shape, not two.
        assert all(cell["checked"] >= 2 - (layer == "29") for cell in cells.values())
        named = {"qmatmul", "attention", "rope", "kv_append", "add_rms_norm", "silu_mul"}
        assert named | ({"rms_norm"} if layer == "0" else set()) == {*cells}


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--sample", "nan", "give a finite number"), ("--seed", "-1", "is not in the range x>=0")],
)
def test_numbers_that_are_none(capsys, option, value, said):
    """Are refused before anything runs."""
    with pytest.raises(SystemExit) as exit_:
        main(["drift", "hi", option, value])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(capsys, tmp_path, tiny_gguf):
    """Is refused before anything is judged."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as exit_:
        main(["drift", "hi", "-m", str(tiny_gguf), "--save", str(tmp_path / "file/inside")])
    said = capsys.readouterr()
    assert (exit_.value.code, said.out) == (2, "")
    assert "it cannot be made: Not a directory; give another folder" in said.err


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("1", "no op is wrong, so weights are: get the model again"),
        ("0", "no op that was judged is wrong; --sample 1 judges all"),
    ],
)
def test_weights_that_are_nan(propolis, tiny_gguf, tmp_path, sample, said):
    """No token is drawn of them: the command fails, and says that the weights are left."""
    model = tmp_path / "nan.gguf"
    shutil.copy(tiny_gguf, model)
    reader = gguf.GGUFReader(model, "r+")
    named = {tensor.name: tensor for tensor in reader.tensors}
    named["blk.1.attn_norm.weight"].data[0] = np.nan
    reader.data.flush()
    done = propolis("drift", "-m", str(model), "--sample", sample)
    assert done.code == 1
    assert f"the logits after 0 tokens are NaN: {said}" in done.out
    assert json.loads(propolis("drift", "-m", str(model), "--json").out)["nan"] is True
