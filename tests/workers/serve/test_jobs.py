"""Jobs, as a hive asks for them."""

from __future__ import annotations

import json

import pytest
from patience import until


def events(server, name, **options) -> list[dict]:
    """All events of a job; the last line says that there are no more."""
    *lines, last, end = server.http.get(f"/v1/jobs/{name}/stream", **options).text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def begin(server, path="/v1/jobs", **fields) -> dict:
    """What the server says to a job."""
    body = {"operation": "infer", "prompt": "the ", "temperature": 0, "max_tokens": 6, **fields}
    got = server.http.post(path, json=body)
    assert got.status_code == 200, got.text
    return got.json()


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/inference"])
def test_a_job(server, llm, path):
    """It starts, tells its tokens, how fast it was, and how it ended; twice the same."""
    generation = llm.complete("the ", max_tokens=6)
    text = "".join(generation)
    asked = begin(server, path, hive_id="h", model="tiny", stream=True, device="cpu")
    assert asked["sse_url"] == f"/v1/jobs/{asked['job_id']}/stream"
    told = events(server, asked["job_id"])
    kinds = [event["type"] for event in told]
    tokens = [event["t"] for event in told if event["type"] == "token"]
    before, after = ["narration", "started", "narration"], ["narration", "metrics", "end"]
    assert kinds == [*before, *["token"] * len(tokens), *after]
    assert told[1]["job_id"] == asked["job_id"]
    assert text == "".join(tokens)
    assert told[-1]["tokens_out"] == len(generation.finish.ids)
    assert told[-1]["stop_reason"] in ("MAX_TOKENS", "EOS")
    assert events(server, asked["job_id"]) == told


def test_people_are_told_of_the_steps(server):
    """Narrations say who does what to what, for which job: queued, started, finished."""
    name = begin(server)["job_id"]
    told = [event for event in events(server, name) if event["type"] == "narration"]
    assert [event["action"] for event in told] == ["queued", "started", "finished"]
    for event in told:
        assert set(event) == {"type", "actor", "action", "target", "human", "job_id"}
        assert (event["actor"], event["target"], event["job_id"]) == ("propolis", "tiny", name)
    assert "6 tokens" in told[-1]["human"]


def test_a_stop_string_is_named(server, llm):
    """The end says which stop string matched."""
    text = "".join(llm.complete("the ", max_tokens=6))
    told = events(server, begin(server, stop=[text[1:3]])["job_id"])
    assert told[-1]["stop_reason"] == "STOP_SEQUENCE"
    assert told[-1]["stop_sequence_matched"] == text[1:3]


def test_cancel(server):
    """A job that is cancelled ends with what it has; one that is not there is an error."""
    name = begin(server, max_tokens=80, temperature=2, seed=1)["job_id"]
    assert server.http.delete(f"/v1/jobs/{name}").status_code == 200
    assert events(server, name)[-1]["stop_reason"] in ("CANCELLED", "EOS", "MAX_TOKENS")
    until(lambda: server.engine.waiting == 0)
    for method, path in (("DELETE", "/v1/jobs/none"), ("GET", "/v1/jobs/none/stream")):
        got = server.http.request(method, path)
        assert (got.status_code, got.json()["error"]["code"]) == (404, "JOB_NOT_FOUND")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 32769}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2049}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"repetition_penalty": 2.1}, "repetition_penalty"),
        ({"min_p": -0.1}, "min_p"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["x" * 101]}, "stop.0"),
        ({"seed": -1}, "seed"),
        ({"surprise": 1}, "surprise"),
        ({"Surprise": 1}, "Surprise"),
    ],
)
def test_limits(server, wrong, field):
    """A field beyond its limits is named, with the limit."""
    got = server.http.post("/v1/jobs", json={"prompt": "x", **wrong})
    assert got.status_code == 400
    assert [error["field"] for error in got.json()["errors"]] == [field]
    assert all(error["constraint"] and error["message"] for error in got.json()["errors"])
    (given,) = wrong.values()
    plain = not isinstance(given, list) and len(str(given)) <= 100
    assert got.json()["errors"][0].get("value") == (given if plain else None)


def test_null_is_as_if_it_were_left_out(server):
    """A hive may send its optional fields so; a penalty of 0 is none."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "seed")
    asked = begin(server, **dict.fromkeys(names))
    assert events(server, asked["job_id"])[-1]["type"] == "end"
    plain, none = (begin(server, repetition_penalty=given) for given in (1, 0))
    said = [
        [event["t"] for event in events(server, one["job_id"]) if event["type"] == "token"]
        for one in (plain, none)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("body", ["{", '{"prompt": }', "[1,"])
def test_what_is_no_json(server, body):
    """Is said to be none, and no field is named that nobody sent."""
    head = {"Content-Type": "application/json"}
    got = server.http.post("/v1/jobs", content=body, headers=head)
    assert (got.status_code, got.json()["error"]["param"]) == (400, None)
    assert got.json()["error"]["message"].startswith("the body is not JSON: ")


def test_a_value_that_is_no_json(server):
    """Infinity, which Python reads and JSON does not know, is refused as other values are."""
    body, head = '{"prompt": "x", "temperature": Infinity}', {"Content-Type": "application/json"}
    got = server.http.post("/v1/jobs", content=body, headers=head)
    (error,) = got.json()["errors"]
    assert (got.status_code, error["field"], "value" in error) == (400, "temperature", False)


def test_a_prompt_beyond_the_context(server):
    """What only the model can judge is said in the same form."""
    got = server.http.post("/v1/jobs", json={"prompt": "the " * 200})
    (error,) = got.json()["errors"]
    assert (got.status_code, error["field"]) == (400, "prompt")
    assert error["constraint"] == got.json()["error"]["code"] == "context_length_exceeded"
    assert "value" not in error
    assert got.json()["error"]["param"] == "prompt"


def test_a_name_is_used_once(server):
    """A job may be named by whoever asks, as no other."""
    assert begin(server, job_id="mine.1")["job_id"] == "mine.1"
    got = server.http.post("/v1/jobs", json={"prompt": "x", "job_id": "mine.1"})
    (error,) = got.json()["errors"]
    assert (got.status_code, error["constraint"], error["value"]) == (409, "unique", "mine.1")
