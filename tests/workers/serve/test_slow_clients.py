"""Clients that are slow, or want too much: each is cut off or refused, and others are answered."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import closing

import pytest
from patience import patience
from patience import until

from propolis_workers.serve.protocol import PatientProtocol


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()


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


def test_pieces_in_time(server, hurried):
    """A request in pieces is answered, and so is the next on the same connection."""
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
