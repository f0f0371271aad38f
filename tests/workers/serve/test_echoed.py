"""Prompts that completions give back, and how likely their tokens were."""

from __future__ import annotations

import json

import numpy as np
import pytest


def complete(server, **fields):
    """The reply to a request for completions."""
    body = {"prompt": "the ", "temperature": 0, "max_tokens": 6, **fields}
    return server.http.post("/v1/completions", json=body)


def prefixes(server, ids: list[int]) -> list[float]:
    """How likely each token but the first is, asked for one by one."""
    found = []
    for place, token in enumerate(ids[1:], 1):
        forced = {"logit_bias": {str(token): 100}, "logprobs": 0, "max_tokens": 1}
        got = complete(server, prompt=ids[:place], ignore_eos=True, **forced).json()
        found.append(got["choices"][0]["logprobs"]["token_logprobs"][0])
    return found


def test_echo_with_logprobs(server, llm):
    """
    Of each token of an echoed prompt but the first it is told how likely it was.

    As evaluation harnesses ask for it, by ids, many prompts at a time; of streams too.
    """
    prompts = [llm.tokenizer.encode(text, add_special=True) for text in ("the cat sat", "on é")]
    got = complete(server, prompt=prompts, echo=True, logprobs=2, max_tokens=1).json()
    for ids, choice in zip(prompts, got["choices"], strict=True):
        told, text = choice["logprobs"], choice["text"]
        assert len(told["tokens"]) == len(ids) + 1
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        np.testing.assert_allclose(told["token_logprobs"][1:-1], prefixes(server, ids), atol=1e-3)
        for value, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
            assert value in top.values()
            assert value <= max(top.values())
        for token, place in zip(told["tokens"], told["text_offset"], strict=True):
            assert text[place:].startswith(token) or token.startswith("bytes:\\x")
    streamed = complete(server, prompt=prompts[0], echo=True, logprobs=2, max_tokens=1, stream=True)
    pieces = [
        json.loads(line.removeprefix("data: "))["choices"][0]
        for line in streamed.text.split("\n\n")[:-2]
    ]
    whole = got["choices"][0]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    told = [piece["logprobs"] for piece in pieces if piece.get("logprobs")]
    for name, values in whole["logprobs"].items():
        joined = [value for one in told for value in one[name]]
        assert len(joined) == len(values)
        if name in ("tokens", "text_offset"):
            assert joined == values


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_at_once(server, llm, stream):
    """
    The token that ends it is told of too.

    lm-evaluation-harness asks for one token, and takes the last that is told for it.
    """
    ids = llm.tokenizer.encode("the cat", add_special=True)
    ends = {str(token): 100 for token in llm.tokenizer.eos_ids}
    asked = {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "logit_bias": ends}
    if stream:
        lines = complete(server, **asked, stream=True).text.split("\n\n")[:-2]
        choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    else:
        choices = complete(server, **asked).json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "the cat"
    assert choices[-1]["finish_reason"] == "stop"
    told = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    assert sum(len(one["tokens"]) for one in told) == len(ids) + 1
    assert told[-1]["text_offset"][-1] == len("the cat")


@pytest.mark.parametrize("stream", [False, True])
def test_places_of_control_tokens(server, stream):
    """A token that is text in what was given has its place, and so has all that follows."""
    text = "<|im_start|>the cat é"
    asked = {"prompt": text, "max_tokens": 2, "echo": True, "logprobs": 0}
    if stream:
        lines = complete(server, **asked, stream=True).text.split("\n\n")[:-2]
        choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    else:
        choices = complete(server, **asked).json()["choices"]
    said = "".join(choice["text"] for choice in choices)
    told = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    places = [place for one in told for place in one["text_offset"]]
    names = [name for one in told for name in one["tokens"]]
    assert said.startswith(text)
    assert "<|im_start|>" in names
    for place, name in zip(places, names, strict=True):
        assert said[place:].startswith(name) or name.startswith("bytes:")
    assert places[-2] >= len(text)


def test_a_text_is_echoed_as_given(server, llm, monkeypatch):
    """A token that the tokenizer puts before a text is told of, at its beginning, and not shown."""
    bos, plain = min(llm.tokenizer.special_ids), llm.tokenizer.encode("the cat", add_special=False)
    monkeypatch.setattr(server.service.prompts, "text", lambda *_, **__: [bos, *plain])
    (choice,) = complete(server, prompt="the cat", echo=True, logprobs=0, max_tokens=0).json()[
        "choices"
    ]
    assert choice["text"] == "the cat"
    told = choice["logprobs"]
    assert told["text_offset"][:2] == [0, 0]
    for place, name in zip(told["text_offset"][1:], told["tokens"][1:], strict=True):
        assert choice["text"][place:].startswith(name)


def test_a_prompt_of_one_token(server, llm):
    """Its only token has no probability, of streams too, and is told of."""
    ids = llm.tokenizer.encode("a", add_special=False)[:1]
    asked = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    (choice,) = complete(server, **asked).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None]
    lines = complete(server, **asked, stream=True).text.split("\n\n")[:-2]
    told = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert [one["logprobs"]["tokens"] for one in told if one.get("logprobs")] == [["a"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone(server, llm, stream):
    """Of no tokens at most a prompt is echoed, and nothing is answered."""
    ids = llm.tokenizer.encode("the cat", add_special=True)
    asked = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        lines = complete(server, **asked, stream=True).text.split("\n\n")[:-2]
        pieces = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
        (told,) = [piece["logprobs"] for piece in pieces if piece.get("logprobs")]
        assert "".join(piece["text"] for piece in pieces) == "the cat"
        assert pieces[-1]["finish_reason"] == "length"
        assert len(told["tokens"]) == len(ids)
        return
    got = complete(server, **asked).json()
    (choice,) = got["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("the cat", "length")
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    assert got["usage"]["completion_tokens"] == 0
    got = complete(server, prompt="the cat", max_tokens=0, echo=True).json()
    assert (got["choices"][0]["text"], got["choices"][0]["logprobs"]) == ("the cat", None)
    got = complete(server, prompt="the cat", max_tokens=0)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "max_tokens")
