"""Who a server says it is, and what pages of others may ask of it."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from propolis.cli import cli


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8080", 200),
        ("localhost.", 200),
        ("127.0.0.1:1", 200),
        ("127.1.2.3", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("0.0.0.0", 421),  # noqa: S104  (a name, refused)
        ("localhost:evil", 421),
    ],
)
def test_who_the_server_is(server, host, status):
    """A name that others can make mean this machine is none of the server's."""
    for path in ("/openapi.json", "/info", "/health"):
        got = server.http.get(path, headers={"Host": host})
        assert got.status_code == status, path
        if status == 421:
            assert got.json()["error"]["code"] == "host_not_allowed"


def test_a_path_is_no_host(server):
    """A page whose name leads here cannot name a host of ours in the path."""
    for path in ("/http://localhost/info", "/%68ttp://localhost/info", "//localhost/info"):
        got = server.http.get(path, headers={"Host": "other.lan"})
        assert (got.status_code, got.json()["error"]["code"]) == (421, "host_not_allowed")


def test_no_host(server):
    """Probes of HTTP/1.0 send none: they learn whether the process lives, and no more."""
    told = {}
    for path in ("/health", "/info"):
        with socket.create_connection(("127.0.0.1", server.http.base_url.port)) as sock:
            sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            told[path] = b"".join(iter(lambda: sock.recv(4096), b"")).decode()
    assert told["/health"].split()[1] == "200"
    assert told["/info"].split()[1] == "421"
    assert "there is no Host header; it is localhost" in told["/info"]
    assert server.http.get("/health", headers={"Host": ""}).status_code == 200


def test_targets_with_their_host(server):
    """They are taken, as HTTP wants it, and it is their host that has to be one of ours."""
    told = {}
    for target in ("http://localhost/v1/models?a=b", "HTTP://localhost", "http://other.lan/info"):
        with socket.create_connection(("127.0.0.1", server.http.base_url.port)) as sock:
            asked = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            sock.sendall(asked.encode())
            told[target] = b"".join(iter(lambda: sock.recv(4096), b"")).decode().split()[1]
    assert list(told.values()) == ["200", "200", "421"]


@pytest.mark.parametrize("path", ["/health", "/v1/ready", "/v1/models", "/metrics", "/api/version"])
def test_what_is_got_by_head(server, path):
    """Probes ask so, too: for the same, but what it says."""
    got = server.http.head(path)
    assert (got.status_code, got.content) == (200, b"")
    assert got.headers["content-type"] == server.http.get(path).headers["content-type"]
    for other in ("/v1/jobs", "/v1/jobs/none/stream", "/v1/loading/progress"):
        assert server.http.head(other).status_code == 405


def test_names_it_was_given(serving):
    """A proxy's name is answered where the server was told it, and any where it need not care."""
    server = serving(hosts=["GPU.lan"])
    for host, status in (("gpu.lan:80", 200), ("localhost", 200), ("other.lan", 421)):
        assert server.http.get("/info", headers={"Host": host}).status_code == status
    server = serving(hosts=None)
    assert server.http.get("/info", headers={"Host": "other.lan"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ("127.0.0.1",)),
        (["--host", "localhost"], ("localhost",)),
        (["--allowed-host", "a", "--allowed-host", "b"], ("127.0.0.1", "a", "b")),
        (["--host", "0.0.0.0", "--open"], None),  # noqa: S104
        (["--host", "::", "--open", "--allowed-host", "a"], ("::", "a")),
    ],
)
def test_the_command_line_says_who_it_is(options, expected, tiny_gguf, monkeypatch):
    """At this machine's own address it is that; elsewhere anything, or what it was told."""
    told = {}

    def run(app, *_) -> int:
        told.update(app.user_middleware[0].kwargs)
        return 0

    monkeypatch.setattr("propolis_workers.serve.server.run", run)
    options = ["--port", "0", *options]
    result = CliRunner().invoke(cli, ["serve", "-m", str(tiny_gguf), *options])
    assert result.exit_code == 0, result.output
    assert told["hosts"] == expected


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "Multipart/form-data; boundary=x"]
)
def test_forms_of_other_pages(server, kind):
    """What a browser sends for any page without asking the server first is not answered."""
    body = '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}'
    for origin, status in (
        ("http://evil.example", 403),
        ("http://evil.example:8080", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        (server.url, 400),  # no JSON
        ("http://localhost:3000", 400),
    ):
        headers = {"Content-Type": kind, "Origin": origin}
        got = server.http.post("/v1/chat/completions", content=body, headers=headers)
        assert got.status_code == status, origin
    got = server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": kind})
    assert got.status_code == 400
    body = body.encode()
    assert server.http.post("/v1/chat/completions", content=body).status_code == 400  # of no kind


@pytest.mark.parametrize("option", ["--deadline", "--stall", "--drain"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_that_are_none(option, value):
    """Are refused as other numbers are that are not in the range."""
    result = CliRunner().invoke(cli, ["serve", option, value])
    assert result.exit_code == 2
    assert f"{value} is not supported: give a finite number" in result.output
