"""Clients that are slow, or want too much: each is cut off or refused, and others are answered."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from patience import patience
from patience import until

from propolis_workers.serve.protocol import PatientProtocol


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
BODY = json.dumps({"messages": [{"role": "user", "content": "secretly"}], "max_tokens": 4}).encode()


@pytest.fixture
def hurried(monkeypatch):
    """Limits that a test can wait for."""
    monkeypatch.setattr(PatientProtocol, "head_seconds", 0.5)
    monkeypatch.setattr(PatientProtocol, "body_seconds", 0.5)
    monkeypatch.setattr(PatientProtocol, "read_seconds", 0.5)


def connected(server) -> socket.socket:
    """A connection to a server."""
    found = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    found.settimeout(patience(30))
    return found


@pytest.mark.parametrize(
    "sent",
    [b"", HEAD, HEAD + b"Content-Length: 500\r\n\r\n" + BODY],
    ids=["nothing", "headers", "a body"],
)
def test_what_never_comes(server, hurried, sent):
    """A connection that does not go on is closed, and who is answered meanwhile is not held."""
    with closing(connected(server)) as slow:
        slow.sendall(sent)
        assert server.chat().status_code == 200
        assert slow.recv(100) == b""


def test_pieces_in_time(server, monkeypatch):
    """A request in pieces is answered, and so is the next on the same connection."""
    monkeypatch.setattr(PatientProtocol, "head_seconds", patience(5))
    monkeypatch.setattr(PatientProtocol, "body_seconds", patience(5))
    with closing(connected(server)) as slow:
        for _ in range(2):
            whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
            for start in range(0, len(whole), 60):
                slow.sendall(whole[start : start + 60])
                time.sleep(0.001)
            assert slow.recv(12) == b"HTTP/1.1 200"
            answer = slow.recv(1 << 16)
            while not answer.endswith(b"}"):
                answer += slow.recv(1 << 16)


def test_who_does_not_read(server, hurried, monkeypatch):
    """An answer that nobody takes is left, and its connection cut."""
    left = []

    async def endless(*_):
        try:
            while True:
                yield {"text": "x" * 100_000, "token": 1}
                await asyncio.sleep(0)
        finally:
            left.append(True)

    monkeypatch.setattr(server.service, "answer", endless)
    body = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with closing(connected(server)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert slow.recv(12) == b"HTTP/1.1 200"
        until(lambda: left, 30)
    monkeypatch.undo()
    assert server.chat().status_code == 200


def test_headers_beyond_all_measure(server):
    """They are refused before anybody reads them."""
    with closing(connected(server)) as rude:
        rude.sendall(HEAD + b"X-Long: " + b"x" * (1 << 20))
        assert rude.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert server.chat().status_code == 200


def test_too_many_at_once(serving):
    """Beyond so many open requests others are refused, and told when to come again."""
    server = serving(most_open=3)
    streams = []
    with ThreadPoolExecutor(3) as pool, server.frozen():
        asked = {"stream": True, "max_tokens": 2}
        streams = [pool.submit(server.chat, **asked) for _ in range(3)]
        until(lambda: server.engine.waiting == 3)
        got = server.chat(**asked)
        assert (got.status_code, got.json()["error"]["code"]) == (429, "busy")
        assert got.headers["retry-after"] == "1"
        assert server.http.get("/health").status_code == 200
    assert all(stream.result().status_code == 200 for stream in streams)
    assert server.chat().status_code == 200


@pytest.mark.slow
def test_ten_thousand_streams(tiny_gguf, tmp_path):
    """
    A flood of streams is refused one by one, in words; no log has a word of any prompt.

    What the second one takes of memory is what the third has: nothing of them is kept.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 500)
    if count < 500:
        pytest.skip(f"the system lets a process have {hard} files: too few for a flood")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "propolis", "serve", "-m", str(tiny_gguf), "--port", str(port)]
    log = tmp_path / "log"
    with log.open("wb") as file:
        environ = {**os.environ, "PROPOLIS_LOG_LEVEL": "debug"}
        command += ["--queue", "16"]
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environ)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(60)) as http:
            until(lambda: answers(http), 60)
            taken = []
            for _ in range(3):
                statuses = asyncio.run(flood(port, count))
                assert sum(statuses.values()) == count
                assert set(statuses) <= {200, 429}, statuses
                assert statuses[429] > count // 2
                until(lambda: http.get("/info").json()["requests"] == 0, 60)
                taken.append(resident(server.pid))
            assert taken[2] < 1.1 * taken[1], taken
            body = {**json.loads(BODY), "temperature": 0}
            assert http.post("/v1/chat/completions", json=body).status_code == 200
    finally:
        server.terminate()
        server.wait(patience(60))
    told = log.read_bytes()
    assert b"http.request" in told
    assert b"Traceback" not in told
    assert b"secret" not in told


def resident(pid: int) -> int:
    """Memory of a process, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def answers(http) -> bool:
    """Whether the server is ready."""
    try:
        return http.get("/v1/ready").status_code == 200
    except httpx2.TransportError:
        return False


async def flood(port: int, count: int) -> Counter[int]:
    """Open streams, all before the first is read; how each was answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    body = json.dumps({**json.loads(BODY), "stream": True, "max_tokens": 60}).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    opened = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(whole)
            opened.append((reader, writer))
        found: Counter[int] = Counter()
        for reader, _ in opened:
            line = await asyncio.wait_for(reader.readline(), patience(120))
            found[int(line.split()[1])] += 1
        return found
    finally:
        for _, writer in opened:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
