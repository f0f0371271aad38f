"""OpenAI's API at its edges: what is refused before work is done, counted, and described."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import until

from propolis_workers.serve.openai_replies import ChatCompletion
from propolis_workers.serve.openai_replies import ChatCompletionChunk
from propolis_workers.serve.openai_replies import Completion
from propolis_workers.serve.openai_replies import Error
from propolis_workers.serve.openai_replies import ModelList


MESSAGES = [{"role": "user", "content": "the thing"}]


def complete(server, **fields):
    """The reply to a request for completions."""
    body = {"prompt": "the ", "temperature": 0, "max_tokens": 6, **fields}
    return server.http.post("/v1/completions", json=body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1_000_000}]}),
        ("/v1/completions", {"prompt": "x" * 1_000_000}),
        ("/api/generate", {"prompt": "x" * 1_000_000}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 1_000_000}]}),
    ],
)
def test_a_text_that_is_too_long(server, path, body, monkeypatch):
    """A text that cannot fit is refused without making tokens of it."""
    monkeypatch.setattr(server.service.prompts.tokenizer, "encode", pytest.fail)
    got = server.http.post(path, json=body)
    assert got.status_code == 400
    error = got.json()["error"]
    if path.startswith("/api/"):  # a text, as Ollama has it
        assert "characters, which are at least" in error
        return
    assert "characters, which are at least" in error["message"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/api/generate"])
def test_room_comes_first(server, path, monkeypatch):
    """Where there is no room nobody makes tokens."""
    monkeypatch.setattr(server.engine._answers, "most", 0)
    monkeypatch.setattr(server.service.prompts.tokenizer, "encode", pytest.fail)
    body = {"messages": MESSAGES} if "chat" in path else {"prompt": "the "}
    got = server.http.post(path, json=body)
    assert (got.status_code, "supported: 0" in got.text) == (400, True)


def test_those_being_prepared_count(serving, monkeypatch):
    """Room is kept for requests whose tokens are being made: more of them are refused."""
    server = serving(most=1, most_waiting=1)
    prompts, may = server.service.prompts, threading.Event()
    encode = prompts.tokenizer.encode
    monkeypatch.setattr(prompts.tokenizer, "encode", lambda *args: may.wait(60) and encode(*args))
    with ThreadPoolExecutor(2) as pool:
        got = [pool.submit(server.chat) for _ in range(2)]
        until(lambda: server.engine._answers.coming == 2)
        assert server.chat().status_code == 429
        may.set()
        assert [one.result().status_code for one in got] == [200, 200]
    assert server.chat().status_code == 200


def test_other_threads_run_while_tokens_are_made(llm, tiny_folder):
    """A long text holds nobody else: the library makes its tokens without Python's lock."""
    from propolis_workers.llm.tokenizer import Tokenizer

    def worst(tokenizer) -> float:
        """The longest pause of this thread while another makes tokens, as a part of that time."""
        work = threading.Thread(target=tokenizer.encode, args=("hello world " * 80_000,))
        started = last = time.perf_counter()
        longest = 0.0
        work.start()
        while work.is_alive():
            time.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest / (last - started)

    for tokenizer in (llm.tokenizer, Tokenizer.from_folder(tiny_folder)):
        assert any(worst(tokenizer) < 0.5 for _ in range(5))


def test_fewest_tokens(llm):
    """A text never has fewer tokens than is said of it beforehand."""
    for text in ("", "the", " the the\n", "<|endoftext|>" * 3, "é🐝" * 9):
        assert llm.tokenizer.fewest(text) <= len(llm.tokenizer.encode(text))
    assert llm.tokenizer.fewest("x" * 1000) > 50


def test_each_likely_token_of_a_completion_is_told(server):
    """Parts of characters have names of their own; the token that was drawn is always there."""
    many = complete(server, logprobs=5, max_tokens=20).json()["choices"][0]["logprobs"]
    assert any(name.startswith("bytes:\\x") for top in many["top_logprobs"] for name in top)
    drawn = complete(server, logprobs=1, max_tokens=40, temperature=2, seed=1).json()
    drawn = drawn["choices"][0]["logprobs"]
    assert any(len(top) == 2 for top in drawn["top_logprobs"])  # not always the likeliest is drawn
    for told in (many, drawn):
        for token, own, top in zip(
            told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
        ):
            assert top[token] == own
            assert "\ufffd" not in "".join(top)
    assert {len(top) for top in many["top_logprobs"]} == {5}


def test_no_top_k(server):
    """A top_k of -1 is vLLM's for all tokens, as 0 is here; less is nothing."""
    asked = {"temperature": 1, "seed": 3, "max_tokens": 12}
    texts = [complete(server, **asked, top_k=k).json()["choices"][0]["text"] for k in (0, -1, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert complete(server, top_k=-2).status_code == 400


def test_no_number(server):
    """NaN, which JSON does not have and Python reads, is said to be none, and not too large."""
    body = '{"prompt": "x", "temperature": NaN}'
    got = server.http.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )
    said = "temperature is NaN; supported: a finite number"
    assert (got.status_code, got.json()["error"]["message"]) == (400, said)
    got = server.http.post("/v1/completions", content=body)
    assert "the body is of no type; send JSON" in got.json()["error"]["message"]


def test_top_logprobs_alone(server):
    """top_logprobs without logprobs is refused, not ignored."""
    got = server.chat(top_logprobs=3)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "top_logprobs")
    assert server.chat(top_logprobs=None).status_code == 200


def test_a_top_p_of_nothing(server):
    """The likeliest token alone reaches it, as clients mean it; of Ollama's API and jobs too."""
    greedy = complete(server).json()["choices"][0]["text"]
    hot = {"temperature": 1.5, "top_p": 0}
    for seed in range(3):
        assert complete(server, **hot, seed=seed).json()["choices"][0]["text"] == greedy
    said = [
        server.http.post(
            "/api/generate",
            json={"prompt": "the ", "raw": True, "stream": False, "options": {**own, "seed": 5}},
        ).json()
        for own in ({"temperature": 0, "num_predict": 6}, {**hot, "num_predict": 6})
    ]
    assert said[0]["response"] == said[1]["response"]
    got = complete(server, top_p=-0.1)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "top_p")


def test_completion_logprobs(server, llm):
    """Offsets are places in the text, of streams too; the token that ends it is no part of it."""
    ends = {str(token): 100 for token in llm.tokenizer.eos_ids}
    got = complete(server, logprobs=1, logit_bias=ends).json()
    assert got["usage"]["completion_tokens"] == 1
    assert got["choices"][0]["logprobs"] is None
    got = complete(server, logprobs=1).json()["choices"][0]
    told, text = got["logprobs"], got["text"]
    assert len(told["tokens"]) == 6
    for token, place in zip(told["tokens"], told["text_offset"], strict=True):
        assert text[place:].startswith(token) or token.startswith("bytes:\\x")
    lines = complete(server, logprobs=1, stream=True).text.split("\n\n")[:-2]
    places = []
    for line in lines:
        (choice,) = json.loads(line.removeprefix("data: "))["choices"]
        places += (choice.get("logprobs") or {"text_offset": []})["text_offset"]
    assert places == told["text_offset"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/nothing/" + "x" * 300, 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_what_is_not_there(server, method, path, status, code):
    """Unknown routes and wrong methods are answered in the words of all errors."""
    got = server.http.request(method, path)
    assert got.status_code == status
    assert got.json()["error"]["code"] == code
    Error.model_validate_json(got.content)
    if status == 405:
        assert got.headers["allow"] in got.json()["error"]["message"]


def test_cached_tokens(server):
    """Tokens that were in the cache are counted for each prompt, and once for its choices."""
    first = {"prompt": "A" * 40, "max_tokens": 1}
    for n in (1, 3):
        again = complete(server, **first, n=n).json()["usage"]
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert 16 <= cached < again["prompt_tokens"] <= 41
    both = complete(server, prompt=["A" * 40, "B" * 40], max_tokens=1).json()["usage"]
    assert cached <= both["prompt_tokens_details"]["cached_tokens"] <= cached + 1


@pytest.mark.parametrize("stream", [False, True])
def test_one_of_several_fails(server, said, stream):
    """An error in one of several choices ends the request, and says which it was."""
    said(server, "a", "b", fails="the logits are no numbers")
    got = server.chat(n=3, stream=stream)
    assert (got.status_code == 200) == stream
    error = json.loads(got.text.split("\n\n")[-2].removeprefix("data: ") if stream else got.text)
    message = error["error"]["message"]
    assert "of 3: the logits are no numbers; the others were ended with it" in message
    assert message.startswith(("choice 1", "choice 2"))


def test_answers_are_described(server):
    """What is answered is what openapi.json says, which has a schema for each."""
    ChatCompletion.model_validate_json(server.chat(logprobs=True, top_logprobs=2).content)
    Completion.model_validate_json(complete(server, logprobs=2).content)
    ModelList.model_validate_json(server.http.get("/v1/models").content)
    Error.model_validate_json(server.chat(surprise=1).content)
    usage = {"include_usage": True}
    for line in server.chat(stream=True, stream_options=usage).text.split("\n\n")[:-2]:
        ChatCompletionChunk.model_validate_json(line.removeprefix("data: "))
    for line in complete(server, stream=True, echo=True).text.split("\n\n")[:-2]:
        Completion.model_validate_json(line.removeprefix("data: "))
    found = server.http.get("/openapi.json").json()
    assert found == server.http.get("/openapi.json").json()
    schemas = found["components"]["schemas"]
    for path, kinds in (
        ("/v1/chat/completions", ("ChatCompletion", "ChatCompletionChunk")),
        ("/v1/completions", ("Completion", "Completion")),
    ):
        replies = found["paths"][path]["post"]["responses"]
        assert "422" not in replies
        content = replies["200"]["content"]
        for form, kind in zip(("application/json", "text/event-stream"), kinds, strict=True):
            assert content[form]["schema"]["$ref"].endswith(f"/{kind}")
        assert "Error" in json.dumps(replies["default"])
    parts = json.dumps(found).split("#/components/schemas/")
    assert {part.split('"')[0] for part in parts[1:]} <= schemas.keys()
