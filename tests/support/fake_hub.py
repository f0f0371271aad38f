"""A hub on this machine: what its protocol has of lists, redirects, ranges and faults."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import unquote
from urllib.parse import urlsplit


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

REVISION = "0123456789abcdef0123456789abcdef01234567"
BIG = os.urandom(300_000)
REPO = "some/Model-GGUF"
FILE = "Model-Q4_K_M.gguf"


def left(folder: Path) -> list[str]:
    """The files below a folder of models."""
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def sleep_as(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Have who pulls, and nobody else of this process, sleep so."""
    own = SimpleNamespace(**{**vars(time), "sleep": sleep})
    for name, module in list(sys.modules.items()):
        theirs = name.startswith(("huggingface_hub", "propolis_workers.models"))
        if theirs and hasattr(vars(module).get("time"), "sleep"):
            monkeypatch.setattr(module, "time", own)


@dataclass
class Hub:
    """
    What the server has, what it does wrong, and what it was asked.

    Attributes:
        url: its address.
        files: repository -> file -> content.
        small: names of files that lie in git itself, and have no SHA-256.
        listed: repository -> entries of its list, in place of those that its files give.
        cut: bytes after which a download ends, for so many downloads as there are numbers.
        reset: whether a cut is TCP's reset, which comes as another error than an end does.
        wrong: names of files whose content is another than the list says.
        refused: repository -> status and the hub's code for it.
        busy: status and headers that downloads are answered with, before they are given anything.
        spans: what ``Content-Range`` says, for so many downloads of a part, None for nothing.
        ranges: whether the server knows any.
        asked: each request: method, path, and the headers that say something.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    small: tuple[str, ...] = ("config.json", "tokenizer.json", "tokenizer_config.json")
    listed: dict[str, object] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    reset: bool = False
    wrong: set[str] = field(default_factory=set)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    busy: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    spans: list[str | None] = field(default_factory=list)
    ranges: bool = True
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def entry(self, name: str, content: bytes) -> dict[str, object]:
        """What the list says of a file."""
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        found = {"rfilename": name, "size": len(content), "blobId": blob.hexdigest()}
        if name not in self.small:
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
        return found

    def downloads(self) -> list[dict[str, str]]:
        """The headers of each request for bytes."""
        return [headers for _, path, headers in self.asked if path.startswith("/cdn/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        told = {name: self.headers[name] for name in ("Range", "Authorization", "User-Agent")}
        self.hub.asked.append((self.command, path, told))
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"] and len(words) == 4:
            self._list("/".join(words[2:]))
        elif len(words) > 4 and words[2] == "resolve" and words[3] == REVISION:
            name, file = "/".join(words[:2]), "/".join(words[4:])
            if file not in self.hub.files.get(name, {}):
                self._fail(404, "EntryNotFound")
                return
            self._answer(302, b"", {"Location": f"/cdn/{name}/{file}"})
        elif words[0] == "cdn":
            self._send("/".join(words[1:3]), "/".join(words[3:]))
        else:
            self._fail(404, "")

    def _list(self, name: str) -> None:
        if name in self.hub.refused:
            self._fail(*self.hub.refused[name])
            return
        if name not in self.hub.files:
            self._fail(401, "RepoNotFound")
            return
        files = self.hub.files[name]
        entries = self.hub.listed.get(name, [self.hub.entry(*one) for one in files.items()])
        document = {"id": name, "sha": REVISION, "siblings": entries}
        body = entries if isinstance(entries, bytes) else json.dumps(document).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _send(self, name: str, file: str) -> None:
        if self.hub.busy:
            status, headers = self.hub.busy.pop(0)
            self._answer(status, b"later", headers)
            return
        content = self.hub.files[name][file]
        if file in self.hub.wrong:
            content = bytes(len(content))
        asked = self.headers["Range"] if self.hub.ranges else None
        begin = int((asked or "bytes=0-")[6:].partition("-")[0])
        rest = content[begin:]
        status = 206 if asked else 200
        span = f"bytes {begin}-{len(content) - 1}/{len(content)}" if asked else None
        if span and self.hub.spans:
            span = self.hub.spans.pop(0)
        headers = {} if span is None else {"Content-Range": span}
        most = self.hub.cut.pop(0) if self.hub.cut else len(rest)
        self._answer(status, rest[:most], {**headers, "Content-Length": str(len(rest))})
        if most < len(rest):
            self.close_connection = True
            if self.hub.reset:
                # An end without lingering is a reset, and takes along what was not read yet.
                lingering = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
                self.connection.close()

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's)
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Who asked went away in the middle: some tests have them do so."""


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the ``with`` block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
