"""OpenAI's API, by OpenAI's own client."""

from __future__ import annotations

import json

import openai
import pytest

from propolis_workers.llm import SamplingParams


MESSAGES = [{"role": "user", "content": "the thing"}]


@pytest.fixture(scope="module")
def client(server):
    """The official client, unchanged."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def alone(llm, messages=MESSAGES, tokens=12, **params):
    """The text and the reason of an answer without a server."""
    generation = llm.chat(messages, params=SamplingParams(**params), max_tokens=tokens)
    return "".join(generation), generation.finish


def test_chat(client, llm):
    """A chat is answered as the command line answers it, with its tokens counted."""
    text, finish = alone(llm)
    got = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_completion_tokens=12
    )
    (choice,) = got.choices
    assert choice.message.content == text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == ("stop" if finish.stop_reason == "EOS" else "length")
    assert got.usage.completion_tokens == len(finish.ids)
    assert got.usage.prompt_tokens == finish.prompt_tokens
    assert got.usage.total_tokens == len(finish.ids) + finish.prompt_tokens


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "system", "content": None}])
def test_a_message_whose_text_was_lost(server, message):
    """Whoever asks has to say something: a text that a client lost is no empty one."""
    got = server.http.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 2})
    assert got.status_code == 400
    assert f"a message of the role {message['role']} has no content" in got.text
    got = server.http.post("/api/chat", json={"messages": [message], "stream": False})
    assert got.status_code == 400
    assert "has no content" in got.json()["error"]
    silent = [{"role": "user", "content": ""}, {"role": "assistant", "content": None}]
    asked = {"messages": [*silent, {"role": "user", "content": "go on"}], "max_tokens": 2}
    assert server.http.post("/v1/chat/completions", json=asked).status_code == 200


def test_stream(client, llm):
    """The pieces of a stream are the answer; its usage comes last, where it is asked for."""
    text, finish = alone(llm)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert [None] * (len(chunks) - 2) == [c.choices[0].finish_reason for c in chunks[:-2]]
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage.completion_tokens == len(finish.ids)
    assert 1 == len({c.id for c in chunks})


def test_sampling_is_that_of_the_seed(client, llm):
    """The same seed draws what it draws on the command line; choices differ from each other."""
    params = {"temperature": 1.0, "top_p": 0.9, "seed": 5}
    text, _ = alone(llm, **params)
    more = {"temperature": 1, "top_p": 0.9, "seed": 5, "max_tokens": 12, "n": 3}
    got = client.chat.completions.create(model="tiny", messages=MESSAGES, **more)
    assert [0, 1, 2] == [choice.index for choice in got.choices]
    assert got.choices[0].message.content == text
    assert 3 == len({choice.message.content for choice in got.choices})
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, **more
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in got.choices]


def test_stop(client, llm):
    """A stop string ends the answer before it."""
    text, _ = alone(llm)
    stop = text[2:4]
    got = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=12, stop=[stop]
    )
    assert got.choices[0].message.content == text[: text.index(stop)]
    assert got.choices[0].finish_reason == "stop"


def test_logprobs(client, llm):
    """Each token comes with its probability and the likeliest; greedy takes the likeliest."""
    _, finish = alone(llm, tokens=4)
    got = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
    )
    content = got.choices[0].logprobs.content
    assert [bytes(one.bytes) for one in content] == list(map(llm.tokenizer.token_bytes, finish.ids))
    for one in content:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].token == one.token
        assert one.top_logprobs[0].logprob == one.logprob < 0
        assert one.logprob >= one.top_logprobs[1].logprob >= one.top_logprobs[2].logprob


def test_penalties_and_bias(client):
    """A bias forces a token; the presence penalty then forbids it a second time."""
    forced = {"temperature": 0, "max_tokens": 2, "logit_bias": {"65": 100}}
    got = client.chat.completions.create(model="tiny", messages=MESSAGES, **forced)
    assert got.choices[0].message.content == "AA"
    got = client.completions.create(
        model="tiny", prompt="A", temperature=0, max_tokens=4, logit_bias={"65": -100}
    )
    assert "A" not in got.choices[0].text


def test_completions(client, llm):
    """Texts and ids are continued, one or many, and echoed where that is wanted."""
    generation = llm.complete("the ", max_tokens=6)
    text = "".join(generation)
    ids = llm.tokenizer.encode("the ", add_special=True)
    for prompt in ("the ", ids):
        got = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=6)
        assert got.choices[0].text == text
    got = client.completions.create(
        model="tiny", prompt=["the ", "on "], temperature=0, max_tokens=6, echo=True
    )
    assert [0, 1] == [choice.index for choice in got.choices]
    assert got.choices[0].text == "the " + text
    pieces = client.completions.create(
        model="tiny", prompt="the ", temperature=0, max_tokens=6, stream=True
    )
    assert text == "".join(chunk.choices[0].text for chunk in pieces)


def test_a_model_by_its_tag(client):
    """Ollama's users add one to each name, here too; another model's name is refused."""
    assert client.models.retrieve("tiny:latest").id == "tiny"
    asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert client.chat.completions.create(model="tiny:latest", **asked).choices
    with pytest.raises(openai.NotFoundError, match="there is 'tiny'"):
        client.chat.completions.create(model="other:latest", **asked)


def test_json_of_a_schema(client):
    """A random model's answer is JSON of the schema all the same, greedy or drawn, many at once."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed, chunked in ((1, False), (2, True)):
        got = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            temperature=1,
            seed=seed,
            max_tokens=60,
            response_format=form,
            n=3,
            stream=chunked,
        )
        texts = ["", "", ""]
        for chunk in got if chunked else [got]:
            for choice in chunk.choices:
                said = choice.delta.content if chunked else choice.message.content
                texts[choice.index] += said or ""
        for text in texts:
            answer = json.loads(text)
            assert set(answer) == {"ok", "n"}
            assert answer["ok"] in (True, False)
            assert answer["n"] in (1, 2, 3)


def test_a_strict_schema_has_no_more_than_it_lists(client):
    """Drawn wildly, an answer has its one property; where it is not strict, some have others."""
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]}
    asked = {"messages": [{"role": "user", "content": "x"}], "model": "tiny", "max_tokens": 40}

    def answers(*, strict: bool) -> set[str]:
        named = {"name": "x", "schema": schema, "strict": strict}
        got = client.chat.completions.create(
            **asked,
            temperature=2,
            seed=2,
            n=8,
            response_format={"type": "json_schema", "json_schema": named},
        )
        return {"".join(choice.message.content.split()) for choice in got.choices}

    assert answers(strict=True) == {'{"n":1}'}
    assert answers(strict=False) != {'{"n":1}'}


def test_grammar(client):
    """An answer follows a grammar to its end."""
    form = {"type": "grammar", "grammar": 'start: ("ab" | "cd") "!"'}
    got = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=1,
        max_tokens=20,
        extra_body={"response_format": form},
    )
    assert got.choices[0].message.content in ("ab!", "cd!")
    assert got.choices[0].finish_reason == "stop"


def test_embeddings_are_refused(client):
    """A model that writes says that it gives none, rather than numbers that mean nothing."""
    with pytest.raises(openai.BadRequestError, match="gives no embeddings"):
        client.embeddings.create(model="tiny", input="x")


def test_models(client):
    """The model is listed under the name by which it is asked."""
    (only,) = client.models.list().data
    assert only.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    both = (client.get(f"/models{end}", cast_to=object) for end in ("", "/"))
    assert next(both) == next(both)
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"model": "other"}, "model", "there is 'tiny'"),
        ({"temperature": 3}, "temperature", "temperature is 3; supported: at most 2"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; supported: at least 1"),
        ({"surprise": 1}, "surprise", "surprise is not supported here: leave it out"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"messages": []}, "messages", "messages has 0 elements; supported: at least 1 element"),
        ({"messages": "hi"}, "messages", 'messages is "hi"; supported: a list'),
        ({"n": 1000}, "n", "n is 1000; supported: at most 16"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "role"),
        (
            {"messages": [{"role": "user", "content": "x" * 400}]},
            "messages",
            "no room for an answer",
        ),
        ({"stop": [""]}, "stop", "stop string is empty"),
        ({"stop": 5}, "stop", "stop is 5; supported: a list or a text"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "ids of tokens"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "ids of tokens"),
        ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias", "1024"),
        (
            {"response_format": {"type": "video"}},
            "response_format",
            "is 'video'; supported: 'text'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
            "response_format",
            "JSON schema cannot be used",
        ),
        (
            {"response_format": {"type": "grammar", "grammar": "start: ("}},
            "response_format",
            "grammar",
        ),
    ],
)
def test_what_cannot_be_used_is_named(server, wrong, param, says):
    """A wrong field is refused by its name, with what is allowed, before anything is computed."""
    body = {"messages": MESSAGES, "max_tokens": 2, **wrong}
    got = server.http.post("/v1/chat/completions", json=body)
    assert got.status_code in (400, 404), got.text
    error = got.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").split(".")[0] == (param or "")
    assert says in error["message"]


def test_fields_that_are_null(server):
    """What a client did not ask for is no reason to refuse it, nor is it within messages."""
    message = {**MESSAGES[0], "audio": None}
    body = {"messages": [message], "max_tokens": 2, "prediction": None, "surprise": None}
    assert 200 == server.http.post("/v1/chat/completions", json=body).status_code
    body["model"] = None
    assert 200 == server.http.post("/v1/chat/completions", json=body).status_code
    error = server.http.post("/v1/chat/completions", json={"messages": None}).json()["error"]
    assert "messages is null; supported: a list" in error["message"]
    body = {"prompt": "a", "max_tokens": 2, "suffix": None, "echo": None}
    assert 200 == server.http.post("/v1/completions", json=body).status_code


def test_an_empty_prompt_is_refused(server):
    """Nothing to continue is the client's error."""
    got = server.http.post("/v1/completions", json={"prompt": ""})
    assert got.status_code == 400
    assert "the prompt is empty" in got.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": NaN}', b"\xff\xfe"])
def test_what_is_no_json_is_refused(server, body):
    """A damaged body is the client's error."""
    headers = {"Content-Type": "application/json"}
    got = server.http.post("/v1/chat/completions", content=body, headers=headers)
    assert got.status_code == 400
    assert "error" in got.json()


def test_stream_is_server_sent_events(server):
    """Each event is a line of JSON after ``data:``, the last one says so."""
    lines = server.chat(stream=True).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    for line in lines[:-2]:
        assert json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk"
