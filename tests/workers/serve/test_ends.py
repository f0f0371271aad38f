"""How a server starts and ends: what it listens at, signals, and engines that keep ending."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from patience import patience
from patience import until
from structlog.testing import capture_logs

from propolis import Config
from propolis.cli import cli
from propolis.errors import UsageError
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.serve import engine as engines
from propolis_workers.serve.answers import AnswerError
from propolis_workers.serve.answers import Answers
from propolis_workers.serve.answers import BusyError
from propolis_workers.serve.gate import Gate
from propolis_workers.serve.server import listen
from propolis_workers.serve.writer import Writer


# An answer of many tokens: those that would end it are never drawn.
ENDLESS = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 80,
    "stream": True,
    "logit_bias": {"265": -100, "264": -100, "263": -100},
}


def ask(program, pool):
    """Begin a stream in a thread; its lines are the result, and it is on its way."""

    def read() -> list[dict | str]:
        with program.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as stream:
            lines = [line[6:] for line in stream.iter_lines() if line]
        return [json.loads(line) if line.startswith("{") else line for line in lines]

    asked = pool.submit(read)
    until(lambda: program.http.get("/info").json()["requests"] == 1)
    return asked


def test_readiness_is_told(program):
    """Who started it on a terminal sees when it answers, on what, and what it computes in."""
    server = program()
    until(lambda: "on cpu (" in server.log.read_text(), 10)
    assert "ready after " in server.log.read_text()
    assert " in f32, keys in " in server.log.read_text()
    assert "; prompt and answer have room for 96 tokens" in server.log.read_text()
    told = server.http.get("/info").json()
    assert (told["dtype"], told["kv_type"]) == ("f32", "f32")


def test_readiness_after_a_restart_is_told(program):
    """Who saw that the engine ended sees when the next one answers."""
    server = program()
    until(lambda: "ready after " in server.log.read_text(), 10)
    os.kill(server.engine(), signal.SIGKILL)
    until(lambda: server.log.read_text().count("ready after ") == 2, 60)
    assert "engine.ended" in server.log.read_text().partition("ready after ")[2]


@pytest.mark.parametrize("context", [2, 96])
def test_ready_is_what_has_computed(tiny_gguf, monkeypatch, context):
    """A step was made before that is said, if there is room for one, and it left nothing behind."""
    drawn = []
    step = BatchEngine.step
    monkeypatch.setattr(BatchEngine, "step", lambda self: (drawn.append(1), step(self))[1])
    writer = Writer()
    config = Config(threads=1, model=str(tiny_gguf)).model_dump(mode="json")
    options = {"context": context, "most": 2, "tokens": None}
    writer.load(config, options, lambda *_: None)
    writer.warm()
    assert bool(drawn) == (context > 2)
    assert not writer.busy
    told = writer.state()
    assert (told["blocks_taken"], told["blocks_kept"], told["running"]) == (0, 0, 0)


@pytest.mark.slow
def test_readiness_of_each_engine_is_told(program):
    """Where one writes and one draws, each says when it can; keys have those that write alone."""
    server = program("--serve", "both")
    until(lambda: server.log.read_text().count("ready after ") == 2, 60)
    lines = [line for line in server.log.read_text().splitlines() if "ready after " in line]
    assert sum("keys in " in line for line in lines) == 1


def test_a_taken_port(tiny_gguf, monkeypatch):
    """It is said in one line before a model is looked for."""
    monkeypatch.setattr("propolis_workers.llm.default_model.find_model", pytest.fail)
    with closing(listen("127.0.0.1", 0)[0]) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli, ["serve", "-m", str(tiny_gguf), "--port", str(port)])
    assert isinstance(result.exception, UsageError)
    assert f"port {port} of 127.0.0.1 is taken" in str(result.exception)


def test_addresses():
    """All addresses of a name have one port; what is none of this machine's is refused."""
    found = listen("localhost", 0)
    (port,) = {one.getsockname()[1] for one in found}
    for one in found:
        one.close()
    listen("127.0.0.1", port)[0].close()  # a port is free again at once
    for host, said in (("192.0.2.1", "192.0.2.1"), ("x" * 64, "is no address")):
        with pytest.raises(UsageError, match=said):
            listen(host, 0)


def test_each_token_is_sent_at_once():
    """
    Small writes do not wait until the client has acknowledged those before.

    A client that keeps its connection acknowledges 40 ms late, and had its first tokens so late.
    """

    async def first(listening: socket.socket) -> int:
        sent: asyncio.Queue[int] = asyncio.Queue()

        async def accepted(_, writer) -> None:
            sock = writer.get_extra_info("socket")
            await sent.put(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accepted, sock=listening):
            with closing(socket.create_connection(listening.getsockname()[:2])):
                return await asyncio.wait_for(sent.get(), patience(10))

    told = [asyncio.run(first(one)) for one in listen("localhost", 0)]
    assert all(told)


@pytest.mark.slow
def test_answers_on_their_way_are_finished(program):
    """After SIGTERM they go on to their end; what is new is refused with a time to come back."""
    server = program()
    with ThreadPoolExecutor() as pool:
        with server.frozen():
            asked = ask(server, pool)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.state() == "draining")
            assert server.http.get("/v1/ready").status_code == 503
            new = server.http.post("/v1/chat/completions", json=ENDLESS)
            assert (new.status_code, new.headers["retry-after"]) == (503, "5")
            assert new.json()["error"]["code"] == "draining"
            assert server.http.get("/health").status_code == 200
            assert server.http.get("/health").json()["state"] == "draining"
        told = asked.result(patience(30))
    assert told[-1] == "[DONE]"
    assert told[-2]["choices"][0]["finish_reason"] in ("length", "stop")
    assert server.code() == 0


@pytest.mark.slow
def test_answers_that_take_too_long(program):
    """Beyond --drain they end with an error event, and the server and its engine with them."""
    server = program("--drain", "0.3")
    engine = server.engine()
    address = (server.http.base_url.host, server.http.base_url.port)
    with ThreadPoolExecutor() as pool, server.frozen(), socket.create_connection(address) as half:
        # One that never says what it wants does not hold the server up.
        half.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        asked = ask(server, pool)
        server.process.send_signal(signal.SIGTERM)
        told = asked.result(patience(30))
        assert "the server is stopping" in told[-1]["error"]["message"]
        assert server.code() == 0
    assert not Path(f"/proc/{engine}").exists()


@pytest.mark.slow
def test_the_second_signal(program):
    """It ends the server at once, whatever is on its way, and the first one says so."""
    server = program("--drain", "600")
    engine = server.engine()
    with ThreadPoolExecutor() as pool, server.frozen():
        asked = ask(server, pool)
        server.process.send_signal(signal.SIGINT)
        until(lambda: server.state() == "draining")
        waits = "waits for 1 answer, 600 s at most; Ctrl-C again ends at once\n"
        assert waits in server.log.read_text()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(patience(2)) == 128 + signal.SIGINT
        assert asked.exception(patience(10)) is not None  # the connection is cut
    assert "Traceback" not in server.log.read_text()
    until(lambda: not Path(f"/proc/{engine}").exists())


UNHEARD = """
import asyncio, signal, sys
from propolis_workers.serve.server import listen, run
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
class Engine:
    waiting = 1
    async def loaded(self):
        print("up", flush=True)
        await asyncio.Event().wait()
    async def drain(self, seconds):
        print("drains", flush=True)
        await asyncio.sleep(seconds)
    def kill(self):
        pass
async def app(scope, receive, send):
    raise NotImplementedError  # nobody asks
sys.exit(run(app, [Engine()], listen("127.0.0.1", 0), float(sys.argv[1])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("drain", [0, 600])
def test_signals_where_nobody_reads_what_is_said(drain, number):
    """They end a server whose standard error is broken all the same; a second one at once."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", UNHEARD, str(drain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True) as server:
        os.close(writing)
        late = threading.Timer(patience(20), server.kill)
        late.start()
        try:
            assert server.stdout.readline() == "up\n"
            server.send_signal(number)
            assert server.stdout.readline() == "drains\n"
            if drain:
                server.send_signal(number)
            assert server.wait() == (128 + number if drain else 0)
        finally:
            late.cancel()
            server.kill()


@pytest.mark.slow
def test_a_signal_while_it_loads(program):
    """A server that loads ends at once; Ctrl-C is an exit code of its own."""
    server = program(ready=False)
    until(server.engine)
    with server.frozen():
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(patience(5)) == 130
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_signal_as_soon_as_it_listens(program):
    """Whoever read that line may end the server: with 0, not as if nobody heeded the signal."""
    server = program(ready=False)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(patience(30)) == 0


@pytest.mark.slow
def test_the_engine_does_not_know_the_token(program):
    """The token that the server wants, by either name, is not in its engine's environment."""
    server = program(LLORCH_API_TOKEN="secret of old")
    assert server.http.get("/v1/models").status_code == 401
    bearer = {"Authorization": "Bearer secret of old"}
    assert server.http.get("/v1/models", headers=bearer).status_code == 200
    environ = Path(f"/proc/{server.engine()}/environ").read_bytes()
    assert b"PATH=" in environ
    assert b"secret" not in environ


def test_an_engine_that_loads_long_and_ends(monkeypatch):
    """It is not started without end, however long each took to load."""
    monkeypatch.setattr(engines, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(engines, "_SETTLED", 0.0)
    engine = engines.Engine({}, {"most": 1})
    ready = [False] * 2 + [True] * 2 + [False] * 9
    lives = []

    async def once():
        lives.append(ready[len(lives)])
        engine._ready = 0.0 if lives[-1] else None  # ready long ago
        return "it ended"

    monkeypatch.setattr(engine, "_once", once)
    asyncio.run(engine._watched())
    # Two failures, two lives that count as new beginnings, and two failures more.
    assert lives == [False] * 2 + [True] * 2 + [False] * 2
    assert engine.status.state == "failed"
    assert "3 times in a row" in engine.status.error


def test_places_are_taken_at_once(serving):
    """However many ask in one moment, no more wait than may."""
    server = serving(most=1, most_waiting=2)
    os.killpg(server.engine._process.pid, signal.SIGSTOP)
    seen, answers = [], server.engine._answers
    add = answers.add
    answers.add = lambda *args: (seen.append(len(answers)), add(*args))[1]
    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(server.chat, "hi") for _ in range(24)]
        until(lambda: sum(one.done() for one in asked) == 21)
        until(lambda: server.engine.waiting == 3)
        os.killpg(server.engine._process.pid, signal.SIGCONT)
        assert sorted(one.result().status_code for one in asked) == [200] * 3 + [429] * 21
    assert max(seen) == 2


def test_faults_are_told_to_whoever_operates_it():
    """What an engine could not compute is an event, and a mistake of who asked is none."""

    async def go(kind):
        answers = Answers(1)
        key, answer = answers.add(None, lambda *_: None)
        answers.say(key, {"error": "logits contain NaN", "kind": kind})
        with pytest.raises(AnswerError, match="NaN"):
            await anext(answer)

    with capture_logs() as logs:
        asyncio.run(go("ModelError"))
        asyncio.run(go("NoTokenError"))
    assert [(e["event"], e["error"]) for e in logs] == [("answer.failed", "NoTokenError")]


def test_an_answer_that_nobody_reads():
    """One that is dropped before its first token gives its place back, and is cancelled."""
    left, ends = [], []

    class Watcher:
        def told(self, one):
            pytest.fail("nothing was said")

        def ended(self, end):
            ends.append(end)

    async def go():
        answers = Answers(1)
        key, answer = answers.add(None, lambda *how: left.append(how), [lambda _: Watcher()])
        with pytest.raises(BusyError):
            answers.expect_room(1)
        with pytest.raises(UsageError, match="supported: 1"):
            answers.expect_room(2)
        del answer
        await asyncio.sleep(0)
        assert left == [(key, "cancel")]
        answers.expect_room(1)

    asyncio.run(go())
    assert ends == ["cancelled"]


@pytest.mark.parametrize("ending", [True, False])
def test_cut_connections_are_no_errors(ending):
    """What is cancelled because the server ends is no failure of a request; else it is."""

    async def cancelled(scope, receive, send):
        raise asyncio.CancelledError

    gate = Gate(cancelled, token=None, most_bytes=1, hosts=None, ending=lambda: ending)
    scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
    asked = gate(scope, None, None)
    if ending:
        asyncio.run(asked)
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(asked)
