"""What programs are told of a mistake, and of what is none, beside the sentence for people."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from propolis import Tensor
from propolis.errors import ModelError
from propolis_workers.sd.latents import to_pixels
from propolis_workers.serve.answers import AnswerError
from propolis_workers.serve.problems import problem_of


def refused(got, status=400):
    """The message of a refusal."""
    assert got.status_code == status, got.text
    return got.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "constraint"),
    [
        ({"top_p": math.nan}, "finite_number"),
        ({"top_p": 2}, "less_than_equal"),
        ({"prompt": [-1]}, "greater_than_equal"),
        ({"echo": math.nan}, "bool_type"),
    ],
)
def test_what_programs_are_told_is_what_people_are(server, body, constraint):
    """The word for a mistake is of the bound that its sentence tells."""
    text = json.dumps({"prompt": "x", **body})
    headers = {"Content-Type": "application/json"}
    got = server.http.post("/v1/completions", content=text, headers=headers).json()
    assert [one["constraint"] for one in got["errors"]] == [constraint]


def test_a_body_of_another_type(server):
    """As curl sends it: both places say the same, and what to send."""
    got = server.http.post("/v1/chat/completions", content="{}", headers={"Content-Type": "x/y"})
    said = refused(got)
    assert said == "the body is of the type x/y; send JSON, with Content-Type: application/json"
    assert [one["message"] for one in got.json()["errors"]] == [said]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/jobs"])
def test_a_prompt_that_is_too_long_has_one_name(server, path):
    """Whatever route is asked, in OpenAI's word."""
    text = "word " * 500
    body = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    got = server.http.post(path, json=body)
    refused(got)
    assert got.json()["error"]["code"] == "context_length_exceeded"


def test_more_answers_than_may_wait(server):
    """The field that asks for them is named."""
    got = server.http.post("/v1/completions", json={"prompt": ["a"] * 64, "n": 16})
    assert "these are 1024 answers at once" in refused(got)
    assert got.json()["error"]["param"] == "n"


@pytest.mark.parametrize("kind", ["NoTokenError", "KernelError"])
def test_faults_of_the_engine_are_no_mistakes(kind):
    """Weights or kernels that give NaN are the server's: a status that clients try again after."""
    problem = problem_of(AnswerError("logits contain NaN", kind))
    assert (problem.status, problem.body()["error"]["type"]) == (500, "server_error")
    assert problem_of(AnswerError("no room", "ModelError")).status == 400


def test_images_that_are_not_finite_are_no_mistakes():
    """What a UNet or a VAE gives is the server's too: by the class of the error, which is sent."""
    nan = Tensor.from_numpy(np.full((1, 3, 8, 8), np.nan, np.float32))
    with pytest.raises(ModelError, match="not finite") as caught:
        to_pixels(nan)
    assert problem_of(AnswerError(str(caught.value), caught.type.__name__)).status == 500
