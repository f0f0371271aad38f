"""What a review found wrong with the server once, each thing held to what it must be."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import socket
import struct
import zlib
from contextlib import closing

import numpy as np
import ollama
import openai
import pytest
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import save_file

from propolis.cli import cli
from propolis.errors import FileFormatError
from propolis_workers.sd.images import read_image
from propolis_workers.serve.jobs import Jobs


def test_a_blank_token_is_refused():
    """Who means to protect a server with nothing is told so."""
    result = CliRunner().invoke(cli, ["serve", "--host", "192.0.2.1"], env={"PROPOLIS_TOKEN": " "})
    assert result.exit_code != 0
    assert "the token is blank" in str(result.exception)


def test_the_token_is_no_unknown_variable():
    """The variable that the docs name is known."""
    from propolis.config import unknown_variables

    assert not list(unknown_variables({"PROPOLIS_TOKEN": "x"}))


@pytest.mark.parametrize(
    "data", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"P6 1 1 255\n000"]
)
def test_what_others_send_is_no_program(data):
    """Of what is sent, formats that every browser shows are read, and no others."""
    with pytest.raises(FileFormatError, match="supported: PNG, JPEG, WEBP"):
        read_image("the image", data)


def test_a_small_file_of_many_pixels():
    """Is refused by its header, before memory is taken for it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 5000, 5000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(FileFormatError, match="the image is 5000x5000; supported"):
        read_image("the image", data)


@pytest.fixture(scope="module")
def loras(tmp_path_factory):
    """A folder with a LoRA and a link to elsewhere."""
    folder = tmp_path_factory.mktemp("loras")
    written(folder / "style.safetensors", 1)
    outside = tmp_path_factory.mktemp("outside") / "other.safetensors"
    written(outside, 2)
    (folder / "link.safetensors").symlink_to(outside)
    (folder / "folder.safetensors").mkdir()
    return folder


def written(path, seed) -> None:
    """A LoRA of the tiny model."""
    random = np.random.default_rng(seed)
    layer = "lora_unet_mid_block_resnets_0_conv1"
    tensors = {
        f"{layer}.lora_down.weight": random.normal(size=(2, 32, 3, 3)).astype("f4"),
        f"{layer}.lora_up.weight": random.normal(size=(32, 2, 1, 1)).astype("f4"),
    }
    save_file(tensors, path)


@pytest.fixture(scope="module")
def studio(drawing, loras):
    """A server that draws."""
    return drawing(loras=loras)


def drawn(studio, **fields) -> bytes:
    """An image's file."""
    asked = {"prompt": "a cat", "seed": 3, "steps": 2, **fields}
    got = studio.http.post("/v1/images/generations", json=asked)
    assert got.status_code == 200, got.text
    return base64.b64decode(got.json()["data"][0]["b64_json"])


def test_loras_that_change(studio, loras):
    """A file that was replaced counts at once; links to elsewhere are not there."""
    assert studio.http.get("/info").json()["image"]["loras"] == ["style.safetensors"]
    first = drawn(studio, loras={"style": 1})
    written(loras / "style.safetensors", 5)
    os.utime(loras / "style.safetensors", ns=(1, 1))
    assert drawn(studio, loras={"style": 1}) != first


def test_images_tell_no_paths(studio, loras):
    """What reproduces an image names the model and its LoRAs, not where they lie."""
    image = Image.open(io.BytesIO(drawn(studio, loras={"style": 1})))
    image.load()
    told = json.loads(image.text["propolis"])
    assert (told["model"], told["loras"][0]["file"]) == ("tiny-sd", "style.safetensors")
    assert os.fspath(loras) not in image.text["propolis"]


def test_base64_as_people_have_it(studio):
    """Lines of it and data URLs are read too, and OpenAI's client may send a list of one image."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, format="PNG")
    lines = base64.encodebytes(file.getvalue()).decode()
    for sent in (lines, "data:image/png;base64," + lines.replace("\n", "")):
        asked = {"operation": "image_transform", "prompt": "x", "input_image": sent, "steps": 2}
        assert studio.http.post("/v1/jobs", json=asked).status_code == 200
    url = studio.url + "/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        files = [("a.png", file.getvalue())]
        got = client.images.edit(image=files, prompt="x", extra_body={"steps": 2})
    assert len(got.data) == 1


@pytest.mark.parametrize("body", ["[1]", '"text"', '{"prompt": "x"}', "7", "null"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/chat/completions"])
def test_bodies_that_are_no_objects(server, body, path):
    """They are the sender's mistake, and it is said what to send."""
    for kind in ("application/json", "application/x-www-form-urlencoded"):
        if kind.endswith("json") and body.startswith("{"):
            continue
        got = server.http.post(path, content=body, headers={"Content-Type": kind})
        assert got.status_code == 400
        if not kind.endswith("json"):
            assert "Content-Type: application/json" in got.json()["error"]["message"]


def test_ollama_as_its_docs_show_it(server):
    """Curl's own type of body is JSON there, and errors are texts."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps({"prompt": "hi", "stream": False, "options": {"num_predict": 2}})
    assert server.http.post("/api/generate", content=body, headers=form).status_code == 200
    client = ollama.Client(host=server.url)
    with closing(client._client), pytest.raises(ollama.ResponseError) as raised:
        client.chat(model="nope", messages=[])
    assert isinstance(raised.value.error, str)
    assert "nope" in raised.value.error


def test_deadlines_are_not_tried_again(server):
    """OpenAI's client asks once, as asking again takes as long."""
    with server.frozen():
        got = server.chat(timeout=0.05)
    assert (got.status_code, got.headers["x-should-retry"]) == (504, "false")


def test_developers_speak_as_the_system(server):
    """The role's new name is taken where templates know the old one."""
    said = [
        server.http.post(
            "/v1/chat/completions",
            json={
                "messages": [
                    {"role": role, "content": "be brief"},
                    {"role": "user", "content": "hi"},
                ],
                "temperature": 0,
                "max_tokens": 4,
            },
        ).json()["choices"]
        for role in ("developer", "system")
    ]
    assert said[0] == said[1]


@pytest.mark.slow
def test_texts_that_nobody_reads(server):
    """A body without images is refused long before reading it would hold others."""
    port = int(server.url.rsplit(":", 1)[1])
    for path, answer in ((b"/v1/chat/completions", b"413"), (b"/v1/jobs", b"400")):
        head = (
            b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        with closing(socket.create_connection(("127.0.0.1", port))) as wire:
            wire.sendall(head + b"Content-Length: 5000000\r\n\r\n")
            if answer == b"400":
                wire.sendall(b" " * 5_000_000)
            assert wire.recv(12).endswith(answer)


def test_jobs_that_never_began():
    """One that is cancelled before its first step ends, and one that breaks says so."""

    async def tell(what) -> list[str]:
        jobs = Jobs()

        async def run(_) -> None:
            raise ValueError

        name = jobs.begin(None, run)
        if what == "cancelled":
            assert jobs.cancel(name)
        async with asyncio.timeout(5):
            told = [event.decode() async for event in jobs.events(name)]
        assert not jobs.cancel(name)
        return told

    assert "CANCELLED" in asyncio.run(tell("cancelled"))[0]
    assert "INFERENCE_FAILED" in asyncio.run(tell("broken"))[0]


def test_names_of_jobs(server):
    """What would not come back in a path is no name."""
    for name in ("..", "é", ".hidden", "a b"):
        got = server.http.post("/v1/jobs", json={"prompt": "x", "job_id": name})
        assert got.status_code == 400


@pytest.mark.slow
def test_a_grammar_that_becomes_too_large(server):
    """
    An answer that cannot follow its grammar to the end is an error, and no cut JSON.

    One that may have hundreds of properties can.
    """
    for count in (600, 2000):
        properties = {f"p{n}": {"type": "string"} for n in range(count)}
        schema = {"name": "s", "schema": {"type": "object", "properties": properties}}
        form = {"type": "json_schema", "json_schema": schema}
        got = server.chat(max_tokens=64, response_format=form)
        if count == 600:
            assert got.status_code == 200
            assert got.json()["choices"][0]["message"]["content"][0] == "{"
        else:
            assert got.status_code == 400
            assert "some 1200 properties" in got.json()["error"]["message"]
    own = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": own}}
    assert server.chat(response_format=form).status_code == 400


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/v1/chat/completions"])
def test_bytes_of_no_type_from_another_page(server, path):
    """Browsers send them unasked for any page: refused as forms are, save for the server's own."""
    body = json.dumps({"prompt": "a", "messages": [{"role": "user", "content": "a"}]})
    for origin, refused in (("http://evil.example", True), (server.url, False)):
        headers = {"Origin": origin, "Content-Type": ""}
        got = server.http.post(path, content=body, headers=headers)
        assert (got.status_code == 403) is refused, got.text


def test_headers_have_a_limit(server):
    """However they come; what is below it passes."""
    for size, status in ((60_000, 200), (70_000, 431)):
        got = server.http.get("/v1/models", headers={"X-Large": "a" * size})
        assert got.status_code == status


def test_a_name_with_a_tag(serving, tiny_gguf):
    """A server whose model has a tag answers to that name on Ollama's routes, and lists it so."""
    server = serving()
    server.service.name = "some/model:latest"
    server.service.names.add("some/model:latest")
    body = {"model": "some/model:latest", "prompt": "a", "stream": False}
    body["options"] = {"num_predict": 2}
    assert server.http.post("/api/generate", json=body).status_code == 200
    assert server.http.post("/api/show", json={"model": "some/model:latest"}).status_code == 200
    (listed,) = server.http.get("/api/tags").json()["models"]
    assert listed["name"] == "some/model:latest"
    assert re.fullmatch(r"[\d.]+[KMB]", listed["details"]["parameter_size"])
    assert listed["details"]["quantization_level"] == "F32"
    assert re.fullmatch("[0-9a-f]{64}", listed["digest"])
    unnamed = server.http.post("/api/show", json={})
    assert unnamed.status_code == 400
    assert "no model is named; there is 'some/model:latest'" in unnamed.json()["error"]
    other = server.http.post("/api/generate", json={**body, "model": "other:latest"})
    assert other.status_code == 404


def test_a_damaged_lora_is_no_fault_of_the_server(drawing, tmp_path):
    """Who asks for it is told its name, what is wrong, and no path."""
    (tmp_path / "junk.safetensors").write_bytes(b"junk!")
    server = drawing(loras=tmp_path)
    body = {"prompt": "a", "steps": 1, "size": "64x64", "loras": {"junk": 1.0}}
    got = server.http.post("/v1/images/generations", json=body)
    assert got.status_code == 400
    assert "junk.safetensors" in got.text
    assert str(tmp_path) not in got.text
    body = {"operation": "image_generation", "prompt": "a", "loras": [{"path": "junk"}]}
    job = server.http.post("/v1/jobs", json={**body, "steps": 1}).json()
    told = server.http.get(job["sse_url"]).text
    assert '"code": "INVALID_REQUEST"' in told
    assert "junk.safetensors" in told


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", {"operation": "image_generation", "width": 2056}, "width"),
        ("/v1/jobs", {"operation": "image_transform", "input_image": "%%"}, "input_image"),
        ("/v1/images/generations", {"size": "1024x1024"}, "size"),
        ("/v1/images/generations", {"size": "large"}, "size"),
    ],
)
def test_a_wrong_field_has_the_name_that_was_sent(drawing, path, body, field):
    """In OpenAI's words and the ancestor's, also where the model's parameter has another name."""
    got = drawing().http.post(path, json={"prompt": "a", "steps": 1, **body})
    assert (got.status_code, got.json()["error"]["param"]) == (400, field)
    assert [error["field"] for error in got.json()["errors"]] == [field]


def test_a_picture_in_a_message(server):
    """Who shows a picture is told which part is wrong, in the names that he sent."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [part]}]
    got = server.http.post("/v1/chat/completions", json={"messages": messages})
    assert got.status_code == 400
    assert got.json()["error"]["param"].startswith("messages.0.content.0.type")
    assert "text" in got.json()["error"]["message"]


def test_a_stop_string_of_nothing(server):
    """Is refused on Ollama's streams as elsewhere, before an answer begins."""
    for stream in (False, True):
        body = {"prompt": "a", "stream": stream, "options": {"stop": [""]}}
        assert server.http.post("/api/generate", json=body).status_code == 400


def test_what_draws_is_not_set_where_nothing_does(tmp_path):
    """A folder of LoRAs that nobody could ask for is an error, not ignored."""
    result = CliRunner().invoke(cli, ["serve", "--loras", str(tmp_path), "--port", "0"])
    assert result.exit_code != 0
    assert "--loras is for what draws" in str(result.exception)


@pytest.mark.parametrize("asked", [["--dtype", "f16"], ["--use-f16"]], ids=str)
def test_what_draws_has_a_dtype_of_its_own(asked):
    """It is not the language model's, which has an option too."""
    result = CliRunner().invoke(cli, ["serve", *asked, "--port", "0"])
    assert result.exit_code != 0
    assert "--llm-dtype is for a language model" in str(result.exception)


def test_the_language_models_dtype(monkeypatch):
    """What --llm-dtype says is what the engine is told, and auto where it says nothing."""
    told = []

    class KnownError(Exception):
        """The engine would begin now."""

    def engine(_, options, **__):
        told.append(options["dtype"])
        raise KnownError

    monkeypatch.setattr("propolis_workers.serve.engine.Engine", engine)
    for asked in ([], ["--llm-dtype", "bf16"]):
        CliRunner().invoke(cli, ["serve", *asked, "--port", "0"])
    assert told == ["auto", "bf16"]


@pytest.mark.parametrize("device", ["cpu", "rocm:0"])
def test_the_memory_that_is_taken(server, device, monkeypatch):
    """A job's metrics say how much of a GPU's memory is taken; a CPU has none of its own."""
    monkeypatch.setitem(server.engine.status.ready, "device", device)
    job = server.http.post("/v1/infer", json={"operation": "infer", "prompt": "a", "max_tokens": 3})
    events = server.http.get(f"/v1/jobs/{job.json()['job_id']}/stream").text.split("\n\n")
    told = [json.loads(one.removeprefix("data: ")) for one in events if one.startswith("data: {")]
    metrics = next(one for one in told if one["type"] == "metrics")
    assert (metrics["vram_bytes"] > 0) == (device != "cpu")
