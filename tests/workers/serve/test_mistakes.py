"""Mistakes of whoever asks or starts a server: what was given, what is supported, what to do."""

from __future__ import annotations

import gzip
import io
import json
import math
import socket

import httpx2
import pytest
from click.testing import CliRunner
from patience import patience
from PIL import Image

from propolis import Config
from propolis.cli import cli
from propolis.errors import ModelError
from propolis_workers.serve.cli import _origin
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.image_service import ImageService
from propolis_workers.serve.service import Service


TOOL_CHOICE = (
    "tool_choice is an object; supported: 'none', 'auto' or 'required', or an object of the type "
    "'function'"
)
ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def both(hosting, tiny_gguf, sd_folder):
    """A server of two models."""
    own = Config(threads=1).model_dump(mode="json")
    told = {"context": 96, "most": 1, "tokens": None}
    writes = Engine({**own, "model": str(tiny_gguf)}, told)
    told = {"most": 1, "dtype": "f32"}
    draws = Engine({**own, "sd_model": str(sd_folder)}, told, kind="sd")
    return hosting(Service(tiny_gguf, writes), ImageService(sd_folder, draws))


def refused(got, status=400):
    """What a response says is wrong."""
    assert got.status_code == status, got.text
    return got.json()["error"]["message"]


def test_no_body(server):
    """A body that is not there is said to be none."""
    kind = {"Content-Type": "application/json"}
    for headers in ({}, kind):
        said = refused(server.http.post("/v1/chat/completions", content=b"", headers=headers))
        assert said == "there is no body: send JSON, with Content-Type: application/json"


def test_too_deep_a_body(server):
    """One that is nested too deeply is said to be."""
    deep = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    kind = {"Content-Type": "application/json"}
    said = refused(server.http.post("/v1/chat/completions", content=deep, headers=kind))
    assert "nested too deeply" in said


def test_a_compressed_body(server):
    """What is compressed is refused as that, and not for its first byte."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    content = gzip.compress(b"{}")
    got = server.http.post("/v1/chat/completions", content=content, headers=headers)
    assert "compressed (gzip); supported: plain" in refused(got, 415)


def test_what_is_not_served(server, drawing):
    """Routes of a model that this server lacks say how it is had."""
    said = refused(server.http.post("/v1/images/generations", json={"prompt": "a"}), 404)
    assert "needs a model that draws" in said
    assert "--images" in said
    studio = drawing()
    for path in ("/v1/chat/completions", "/api/generate"):
        told = studio.http.post(path, json=ASKED)
        assert told.status_code == 404
        assert "needs a model that writes" in told.text
    assert "there is no /v1/else here" in refused(server.http.post("/v1/else"), 404)


PICTURE = [{"type": "image_url", "image_url": {"url": "x"}}]


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": PICTURE}]},
            ["messages.0.content.0.type is \"image_url\"; supported: 'text' or 'refusal'"],
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            ["messages.0.content.0.text is missing: give it"],
        ),
        ("/v1/completions", {"prompt": 5}, ["prompt is 5; supported: a text or a list"]),
        (
            "/v1/completions",
            {"prompt": []},
            ["prompt is a list; supported: a text or a list of at least 1 element"],
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "grammar"}},
            ["response_format.grammar is missing: give it"],
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_object", "foo": 1}},
            ["response_format.foo is not supported here: leave it out"],
        ),
        (
            "/v1/chat/completions",
            {"top_p": math.nan},
            ["top_p is NaN; supported: a finite number"],
        ),
        (
            "/v1/chat/completions",
            {"tool_choice": {"type": "allowed_tools"}},
            [TOOL_CHOICE],
        ),
        ("/v1/completions", {"prompt": [-1]}, ["prompt.0 is -1; supported: at least 0"]),
        (
            "/v1/chat/completions",
            {"stream_options": {"include_usage": True}},
            ["stream_options goes with stream: true; leave it out, or stream"],
        ),
        (
            "/v1/chat/completions",
            {"chat_template_kwargs": {"messages": []}},
            ["the chat template's messages is the model's or the request's own: leave it out"],
        ),
    ],
)
def test_each_mistake_is_told_once(server, path, more, told):
    """What is wrong has its place in the body, once, and nothing that is not wrong is told."""
    body = {**ASKED, **more} if "chat" in path else more
    headers = {"Content-Type": "application/json"}
    got = server.http.post(path, content=json.dumps(body), headers=headers)
    assert refused(got) == told[0]
    assert [one["message"] for one in got.json()["errors"]] == told


def test_too_long_a_number(server):
    """A number of more digits than are read is said to be that."""
    body = b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}"
    kind = {"Content-Type": "application/json"}
    said = refused(server.http.post("/v1/chat/completions", content=body, headers=kind))
    assert "too many digits" in said


def test_a_body_that_is_too_large_is_answered(server):
    """Whoever still sends as he is refused reads why, and no reset connection."""
    body = b'{"prompt": "' + b"x" * (40 << 20) + b'"}'
    kind = {"Content-Type": "application/json"}
    for _ in range(3):
        got = httpx2.post(f"{server.url}/v1/completions", content=body, headers=kind)
        assert "supported here: send less" in refused(got, 413)


@pytest.mark.parametrize("expects", [False, True])
def test_too_large_a_body_without_its_size(serving, expects, monkeypatch):
    """One that comes in chunks is refused as soon as it is known, and nothing is waited for."""
    monkeypatch.setattr("propolis_workers.serve.gate._SWALLOWING", 600 + patience(30))
    server = serving(most_bytes=1000)
    address = (server.http.base_url.host, server.http.base_url.port)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(address, timeout=patience(30)) as sock:
        if expects:
            sock.sendall(head + b"Content-Length: 5000\r\nExpect: 100-continue\r\n\r\n")
        else:
            body = b"5dc\r\n" + b"x" * 1500 + b"\r\n0\r\n\r\n"
            sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"body": 1}, "body"),
        ({"infer": 1}, "infer"),
        ({"metadata": {"Name": 1}}, "metadata.Name"),
        ({"x" * 5000: 1}, "x" * 5000),
    ],
    ids=["body", "infer", "Name", "long"],
)
def test_fields_of_any_name(server, more, field):
    """A field is named as it was sent, whatever that means elsewhere."""
    got = server.http.post("/v1/chat/completions", json=ASKED | more)
    assert refused(got).startswith(field)
    assert [one["field"] for one in got.json()["errors"]] == [field]


def test_files_that_were_not_chosen(drawing):
    """A form's field that nobody filled in is none."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    data = {"prompt": "x", "mask": "", "steps": "3"}
    files = {"image": ("a.png", file.getvalue())}
    got = drawing().http.post("/v1/images/edits", data=data, files=files)
    assert got.status_code == 200, got.text


def test_texts_for_files(drawing):
    """What is no file is said to be a text, by the field's name as it was sent."""
    http = drawing().http
    for name in ("image", "image[]", "mask"):
        said = refused(http.post("/v1/images/edits", data={"prompt": "x", name: "a.png"}))
        assert said == f"{name} is a text; supported: a file, as multipart/form-data has them"


def test_the_cache_bounds_the_context(tiny_gguf, monkeypatch):
    """Where it does, the message about too long a prompt says that."""
    monkeypatch.setattr("propolis_workers.serve.server.run", lambda *_: 0)
    made = []
    told = Service.__init__

    def init(self, *args, **kwargs):
        told(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Service, "__init__", init)
    for options in (["--cache-tokens", "64"], []):
        command = ["serve", "-m", str(tiny_gguf), "--port", "0", *options]
        assert CliRunner().invoke(cli, command).exit_code == 0
    assert all(service.is_named(str(tiny_gguf)) for service in made)  # as whoever started it said
    for service, raised in zip(made, ("raise --cache-tokens", "raise the context"), strict=True):
        service.engine.status.ready["context"] = 64
        with pytest.raises(ModelError, match=raised):
            service.expect_prompt([1] * 64)


def test_the_other_model(both):
    """A model that is served elsewhere is said to be, and where."""
    draws, writes = "tiny-sd", "tiny"
    said = refused(both.http.post("/v1/chat/completions", json=ASKED | {"model": draws}), 404)
    assert f"{draws!r} is for /v1/images/generations" in said
    body = {"prompt": "a", "model": writes}
    said = refused(both.http.post("/v1/images/generations", json=body), 404)
    assert f"{writes!r} is for chats" in said
    assert f"there is {draws!r}" in said


def test_two_images(drawing):
    """Of two images to be changed none is left out without a word."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    data = file.getvalue()
    files = [("image", ("a.png", data)), ("image", ("b.png", data))]
    got = drawing().http.post("/v1/images/edits", data={"prompt": "x"}, files=files)
    assert "image has 2 elements; supported: at most 1" in refused(got)
    files = [("image[]", file) for _, file in files]  # as OpenAI's client calls a list of them
    got = drawing().http.post("/v1/images/edits", data={"prompt": "x"}, files=files)
    assert "image[] has 2 elements; supported: at most 1" in refused(got)


@pytest.mark.parametrize(
    ("body", "given"), [([], "is a list"), ("x", 'is "x"'), (7, "is 7"), (True, "is true")]
)
def test_a_job_that_is_no_object(server, body, given):
    """It is the body that is wrong, not the operation that it does not name."""
    got = server.http.post("/v1/jobs", json=body)
    assert refused(got) == f"the body {given}; supported: an object"


def test_an_operation_that_is_unknown(server):
    """It is named, with those there are."""
    got = server.http.post("/v1/jobs", json={"prompt": "a", "operation": "dance"})
    assert refused(got).startswith('operation is "dance"; supported: infer, image_generation')
    assert got.json()["errors"][0]["value"] == "dance"


def test_a_token_without_its_scheme(serving):
    """A token that was sent alone is not said to be a wrong one."""
    server = serving(token="secret")
    for given, says in (("secret", "has no Bearer"), ("Bearer x", "is not the server's")):
        got = server.http.get("/v1/models", headers={"Authorization": given})
        assert says in refused(got, 401)


def test_pages_that_may_ask(serving):
    """A page of a named origin gets leave from the browser; others get none."""
    server = serving(origins=("https://example.org",))
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    for origin, leave in (("https://example.org", True), ("https://evil.example", False)):
        headers = {"Origin": origin}
        got = server.http.options("/v1/chat/completions", headers=headers | wanted)
        assert (got.status_code == 200) == leave
        assert (got.headers.get("access-control-allow-origin") == origin) == leave
        got = server.http.get("/v1/models", headers=headers)
        assert (got.headers.get("access-control-allow-origin") == origin) == leave
    for origin in ("tauri://localhost", "chrome-extension://abc"):
        assert _origin(origin) == origin
    form = {"Origin": "https://example.org", "Content-Type": "text/plain"}
    got = server.http.post("/v1/chat/completions", content=b"{}", headers=form)
    assert got.status_code == 400  # it may, and this is no JSON


def test_no_page_may_ask_unasked(server):
    """Without the option no page gets leave, and is told what would give it."""
    headers = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    got = server.http.options("/v1/chat/completions", headers=headers)
    assert "--allow-origin" in refused(got, 403)
    assert "access-control-allow-origin" not in got.headers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cache-tokens", "64", "--context", "80"], "holds no sequence of --context"),
        (["--serve", "llm", "--images", "x"], "--images is for what draws"),
        (["--serve", "sd", "--cache-tokens", "512"], "--cache-tokens is for what writes"),
        (["--serve", "sd", "--context", "4096"], "--context is for what writes"),
        (["--serve", "sd", "--kv-type", "f16"], "--kv-type is for what writes"),
        (["--serve", "sd", "--speculate", "4"], "--speculate is for what writes"),
        (["--allow-origin", "example.org"], "supported: as https://example.org"),
        (["--token", ""], "the token is blank"),
        (["--images-at-once", "2"], "--images-at-once is for what draws"),
        (["--allowed-host", " "], "--allowed-host ' ' is no host"),
        (["--allowed-host", "http://x.example/"], "'http://x.example/' is no host"),
        (["--token", "a\nb"], "a line break or the like within"),
        (["--host", " "], "--host is blank"),
        (["--worker-id", " "], "--worker-id is blank"),
    ],
    ids=str,
)
def test_options_that_do_nothing(options, says, tiny_gguf, monkeypatch):
    """What could not be done as it was asked for is refused before anything is loaded."""
    monkeypatch.setattr("propolis_workers.serve.server.run", lambda *_: 0)
    model = [] if "sd" in options else ["-m", str(tiny_gguf)]
    result = CliRunner().invoke(cli, ["serve", *model, "--port", "0", *options])
    assert result.exit_code != 0
    assert says in str(result.exception)


@pytest.mark.slow
def test_a_device_that_is_not_there(program):
    """A server that can never be ready ends, with the reason and the code of a mistake."""
    server = program("--device", "cpu:7", ready=False)
    assert server.process.wait(patience(30)) == 2
    assert "error: no device 'cpu:7'; present: cpu" in server.log.read_text()


@pytest.mark.slow
def test_a_cache_that_is_too_large(program):
    """So does one that has no room; its code says that it is no mistake of the command."""
    server = program("--cache-tokens", str(1 << 40), ready=False)
    assert server.process.wait(patience(30)) == 3
    assert "error: a cache of" in server.log.read_text()


def test_ready_while_it_drains(server):
    """A model that is loaded stays loaded while the server takes nothing new."""
    server.engine.draining = True
    try:
        told = server.http.get("/v1/ready").json()
    finally:
        server.engine.draining = False
    assert (told["ready"], told["model_loaded"], told["state"]) == (False, True, "draining")


@pytest.mark.parametrize("field", ["scheduler", "size", "response_format"])
def test_settings_of_images(drawing, field):
    """What a picture is to be like is refused by its field, with what there is."""
    body = {"prompt": "x", field: "foo"}
    got = drawing().http.post("/v1/images/generations", json=body)
    said = refused(got)
    assert ("'foo'" in said, "supported: " in said) == (True, True)
    assert got.json()["error"]["param"] == field
