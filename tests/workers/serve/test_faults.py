"""Engines whose kernels fail: each request ends in the right tokens or a clear error."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import patience
from patience import until

from propolis import Config
from propolis.errors import OutOfMemoryError
from propolis.plugins.quarantine_file import QuarantineFile
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.serve import engine as engines
from propolis_workers.serve.child import Child
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.service import Service
from propolis_workers.serve.writer import Writer


KERNELS = Path(__file__).parents[3] / "build" / "cache" / "propolis" / "kernels"
# Each of these fails from a number of rows on: one step is made before anybody asks, of few.
ABORTS = """
import os
from propolis_cpu_ref.ops_norm import rms_norm as right
def rms_norm(out, x, weight, /, eps=1e-5):
    if x.shape[1] >= {rows}:
        os.abort()
    right(out, x, weight, eps=eps)
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={{dtypes.f32}}, priority=100)
"""
HANGS = """
import ctypes
from propolis_cpu_ref.ops_norm import rms_norm as right
def rms_norm(out, x, weight, /, eps=1e-5):
    if x.shape[1] >= {rows}:
        ctypes.PyDLL(None).pause()  # as a library that waits for a GPU, and holds Python's lock
    right(out, x, weight, eps=eps)
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={{dtypes.f32}}, priority=100)
"""
# What compiles for longer than an engine may hang, and then fails: the reference takes over.
COMPILES = """
import time
from propolis.preparing import preparing
def rms_norm(out, x, weight, /, eps=1e-5):
    with preparing("a kernel"):
        time.sleep({seconds})
    raise RuntimeError("it does not compile")
@hookimpl
def propolis_ops(device):
    yield OpImpl(op="rms_norm", fn=rms_norm, dtypes={{dtypes.f32}}, priority=100)
"""

# A kernel that never ends, as one that waits for what no other block writes.
HANGS_LATER = '''
from propolis_rocm_hip.modules import ModuleSource
SOURCE = """
extern "C" __global__ void stuck(volatile int* flag, int never) {
    while (*flag != never) {}
}
"""
MODULE = ModuleSource("stuck", {"stuck": "Pi"}, source=lambda: SOURCE)
def rms_norm(out, x, weight, /, eps=1e-5):
    kernel = out.device.modules.function(MODULE, "stuck")
    kernel((1, 1, 1), (1, 1, 1), 0, out.ptr, 0x7FEDCBA9)
@hookimpl
def propolis_ops(device):
    yield OpImpl(
        op="rms_norm", fn=rms_norm, device="rocm", dtypes={dtypes.f32}, priority=900,
        capture_safe=True,
    )
'''


LONG = "more tokens than the step that an engine makes before anybody asks"


@pytest.mark.slow
def test_an_op_that_aborts_is_left_out(site, server, serving, tmp_path, monkeypatch):
    """The engine dies in it once; the next does without, says so, and answers."""
    expected = server.chat(LONG).json()["choices"][0]["message"]
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    site.plugin("deadly", ABORTS.format(rows=5))
    broken = serving()
    got = broken.chat(LONG)
    assert got.status_code == 503
    assert "SIGABRT" in got.json()["error"]["message"]
    until(lambda: broken.http.get("/v1/ready").status_code == 200, 60)
    assert broken.chat(LONG).json()["choices"][0]["message"] == expected
    until(lambda: "placement" in broken.now())
    assert broken.now()["placement"]["ops"]["rms_norm"] == ["cpu_ref (propolis-cpu-ref 0.1.0)"]
    assert [one["plugin"] for one in broken.now()["quarantined"]] == ["deadly"]
    assert broken.engine.status.restarts == 1
    assert (
        'quarantined{kind="llm",op="rms_norm",plugin="deadly"} 1.0'
        in broken.http.get("/metrics").text
    )


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [ABORTS, HANGS], ids=["aborts", "hangs"])
def test_what_breaks_at_once_breaks_for_nobody(
    site, server, serving, tmp_path, monkeypatch, breaks
):
    """What fails at an engine's first step is left out before a client is told that it is ready."""
    expected = server.chat().json()["choices"][0]["message"]
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    site.plugin("deadly", breaks.format(rows=1))
    broken = serving(stalls=patience(2))
    assert broken.chat().json()["choices"][0]["message"] == expected
    assert broken.engine.status.restarts == 1
    until(lambda: "quarantined" in broken.now())
    assert [one["plugin"] for one in broken.now()["quarantined"]] == ["deadly"]


def test_a_step_that_always_fails(serving, tiny_gguf, monkeypatch):
    """A model whose first step fails is not said to be ready, and why is told."""

    def step(_):
        msg = "no room for that"
        raise OutOfMemoryError(msg)

    monkeypatch.setattr(BatchEngine, "step", step)
    writer = Writer()
    config = Config(threads=1, model=str(tiny_gguf)).model_dump(mode="json")
    writer.load(config, {"context": 96, "most": 2, "tokens": None}, lambda *_: None)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("propolis_workers.serve.child._worker", lambda _: writer)
    monkeypatch.setattr(writer, "load", lambda *_: {})
    with ours, theirs:
        ours.sendall(b'{"do": "load", "kind": "llm", "config": {}, "options": {}}\n')
        Child(theirs).run()
        theirs.shutdown(socket.SHUT_WR)
        told = [json.loads(line) for line in ours.makefile()]
    assert [one["is"] for one in told] == ["warming", "failed"]
    assert told[-1]["error"] == "no room for that"


@pytest.mark.slow
def test_what_compiles_does_not_hang(site, server, serving, tmp_path, monkeypatch):
    """However long it takes beside the time that is set, the engine is let be, and answers."""
    expected = server.chat().json()["choices"][0]["message"]
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    stalls = patience(2)
    site.plugin("slow", COMPILES.format(seconds=stalls + 4))
    slow = serving(stalls=stalls)
    assert slow.chat().json()["choices"][0]["message"] == expected
    assert slow.engine.status.restarts == 0


@pytest.mark.slow
def test_an_op_that_hangs_is_left_out(site, server, serving, tmp_path, monkeypatch):
    """Who waits is told after the time that is set; the next engine does without what hangs."""
    expected = server.chat(LONG).json()["choices"][0]["message"]
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(tmp_path / "cache"))
    site.plugin("endless", HANGS.format(rows=5))
    broken = serving(stalls=patience(2))
    got = broken.chat(LONG)
    assert got.status_code == 503
    assert "computed nothing for" in got.json()["error"]["message"]
    until(lambda: broken.http.get("/v1/ready").status_code == 200, 60)
    assert broken.chat(LONG).json()["choices"][0]["message"] == expected
    until(lambda: "quarantined" in broken.now())
    assert [one["plugin"] for one in broken.now()["quarantined"]] == ["endless"]


@pytest.mark.slow
def test_a_kernel_that_hangs_is_left_out(
    site, server, hosting, hipsim, tiny_gguf, tmp_path, monkeypatch
):
    """
    A kernel that never ends is found, though others were launched after it, and left out.

    The first engine that hangs cannot know at which; the second waits for each call, and the
    third answers without it.  Nobody else is taken out.
    """
    expected = server.chat().json()["choices"][0]["message"]
    on_simulator(hipsim, tmp_path, monkeypatch)
    config = Config(threads=1, device="rocm:0").model_dump(mode="json")
    options = {"context": 96, "most": 4, "tokens": None}
    whole = hosting(Service(tiny_gguf, Engine({**config, "model": str(tiny_gguf)}, options)))
    until(lambda: whole.http.get("/v1/ready").status_code == 200, 240)
    assert whole.chat().json()["choices"][0]["message"] == expected  # and kernels are compiled
    site.plugin("endless", HANGS_LATER)
    engine = Engine({**config, "model": str(tiny_gguf)}, options, stalls=patience(10))
    broken = hosting(Service(tiny_gguf, engine))
    until(lambda: broken.http.get("/v1/ready").status_code == 200, 240)
    entries = QuarantineFile(Config.load().cache_dir)
    entries.collect()
    assert [entry.source.plugin for entry in entries.entries()] == ["endless"]
    assert broken.chat().json()["choices"][0]["message"] == expected
    assert broken.engine.status.restarts == 2


@pytest.mark.slow
def test_the_context_is_known_while_an_engine_starts_again(serving):
    """A request that is made tokens of just then is not refused for its length."""
    server = serving()
    assert server.chat().status_code == 200
    known = server.service.context
    os.kill(server.engine._process.pid, signal.SIGKILL)
    until(lambda: server.engine.status.state != "ready")
    assert server.engine.status.ready == {}
    assert server.service.context == known > 0
    until(lambda: server.http.get("/v1/ready").status_code == 200, 60)
    assert server.chat().status_code == 200


@pytest.mark.slow
def test_an_engine_that_is_stopped(serving, monkeypatch):
    """One that hears no signal but the last is ended too, and another one answers."""
    monkeypatch.setattr(engines, "_LAST_WORDS", 0.2)
    server = serving(stalls=patience(2))
    os.killpg(server.engine._process.pid, signal.SIGSTOP)
    got = server.chat()
    assert got.status_code == 503
    assert "computed nothing for" in got.json()["error"]["message"]
    until(lambda: server.http.get("/v1/ready").status_code == 200, 60)
    assert server.chat().status_code == 200


def on_simulator(hipsim, tmp_path, monkeypatch):
    """What is quarantined here stays here; kernels are compiled once, for all tests."""
    KERNELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "propolis").mkdir()
    (tmp_path / "propolis" / "kernels").symlink_to(KERNELS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(hipsim))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        {"HIPSIM_FAIL_LAUNCH": "90"},
        {"HIPSIM_FAIL_MALLOC": "40"},
        {"HIPSIM_DEVICE_LOST": "500"},
        {"HIPSIM_DEVICE_LOST": "420"},
    ],
    ids=lambda fault: " ".join("=".join(item) for item in fault.items()),
)
def test_a_simulated_gpu_that_fails(
    server, hosting, hipsim, tiny_gguf, tmp_path, monkeypatch, fault
):
    """Many at once, on a device that fails amid them: right tokens, or an error in words."""
    texts = [f"number {n}" for n in range(8)]
    expected = {text: server.chat(text).json()["choices"][0]["message"] for text in texts}
    on_simulator(hipsim, tmp_path, monkeypatch)
    for name, value in fault.items():
        monkeypatch.setenv(name, value)
    config = Config(threads=1, device="rocm:0").model_dump(mode="json")
    options = {"context": 96, "most": 4, "tokens": None}
    engine = Engine({**config, "model": str(tiny_gguf)}, options, most_waiting=32)
    broken = hosting(Service(tiny_gguf, engine))
    wrong, errors, right = [], [], 0
    lost = "HIPSIM_DEVICE_LOST" in fault
    # How many launches a round takes is the machine's: requests that meet are answered together.
    for number in range(24):
        if number >= 4 and (broken.engine.status.restarts or not lost):
            break
        until(lambda: broken.http.get("/v1/ready").status_code == 200, 120)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(broken.chat, texts))
        for text, answer in zip(texts, got, strict=True):
            if answer.status_code == 200:
                right += answer.json()["choices"][0]["message"] == expected[text]
                if answer.json()["choices"][0]["message"] != expected[text]:
                    wrong.append((text, answer.text))
            else:
                errors.append((answer.status_code, json.loads(answer.text)["error"]["message"]))
    assert not wrong
    assert right >= 8
    assert all(status in (500, 503) and message for status, message in errors), errors
    if lost:
        assert broken.engine.status.restarts >= 1
        assert any("hipErrorLaunchFailure" in message for _, message in errors)
    assert broken.http.get("/health").status_code == 200
