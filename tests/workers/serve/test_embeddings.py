"""Texts as vectors, by models whose files say that they are made for it."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import numpy as np
import ollama
import openai
import pytest

from propolis.errors import ModelError
from propolis_workers.llm import LLM
from propolis_workers.llm.embedding import Embedder
from propolis_workers.serve.answers import BusyError
from propolis_workers.serve.vectors import cut


POOLINGS = {"mean": 1, "last": 3}
TEXTS = ["the ant and all", "on", "an ant on the hill, and then all of them " * 2]


def expected(tiny, ids, how):
    """In f64: states after the last norm, found from the logits, which are their products."""
    states = np.linalg.lstsq(tiny.weights["lm_head.weight"].astype(float), tiny.reference(ids).T)[0]
    one = states.T.mean(0) if how == "mean" else states.T[-1]
    return one / np.linalg.norm(one)


@pytest.fixture(scope="module", params=POOLINGS)
def made(request, serving, tiny, tmp_path_factory):
    """A server of the tiny model, made for embeddings, and how they are read."""
    path = tmp_path_factory.mktemp("made") / "made.gguf"
    tiny.gguf(path, metadata={"llama.pooling_type": POOLINGS[request.param]})
    return serving(model=path, context=96), request.param


def test_vectors(made, tiny):
    """OpenAI's client gets what f64 gives, in floats and in base64, from texts and from ids."""
    server, how = made
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    tokenizer = server.service.prompts.tokenizer
    ids = [tokenizer.encode(text, add_special=True) for text in TEXTS]
    truth = np.array([expected(tiny, one, how) for one in ids])
    for given in (TEXTS, ids):
        for form in ("float", "base64", None):
            more = {} if form is None else {"encoding_format": form}
            got = client.embeddings.create(model="made", input=given, **more)
            vectors = [one.embedding for one in got.data]
            if form == "base64":
                vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
            assert np.abs(np.array(vectors) - truth).max() <= 2e-6
            assert [one.index for one in got.data] == [0, 1, 2]
            assert got.usage.prompt_tokens == sum(map(len, ids))
    one = client.embeddings.create(model="", input=TEXTS[0]).data[0].embedding
    assert np.abs(np.array(one) - truth[0]).max() <= 2e-6


def test_by_ollama(made, tiny):
    """Ollama's client gets the same, of one text and of many, in the form of now and of before."""
    server, how = made
    client = ollama.Client(host=server.url)
    with closing(client._client):
        tokenizer = server.service.prompts.tokenizer
        ids = [tokenizer.encode(text, add_special=True) for text in TEXTS]
        truth = np.array([expected(tiny, one, how) for one in ids])
        got = client.embed("made", TEXTS)
        assert np.abs(np.array(got.embeddings) - truth).max() <= 2e-6
        assert got.prompt_eval_count == sum(map(len, ids))
        assert got.total_duration > 0
        assert np.abs(np.array(client.embed("made", TEXTS[1]).embeddings) - truth[1]).max() <= 2e-6
        old = client.embeddings("made", TEXTS[2]).embedding
        assert np.abs(np.array(old) - truth[2]).max() <= 2e-6
        assert client.show("made").capabilities == ["embedding"]
        assert not client.embed("made", "").embeddings
        assert not client.embeddings("made", "").embedding
        long = "the " * 200
        whole = tokenizer.encode(long, add_special=True)
        ended = [token for token in whole[-1:] if token in tokenizer.special_ids]
        kept = expected(tiny, whole[: 96 - len(ended)] + ended, how)
        assert np.abs(np.array(client.embed("made", long).embeddings[0]) - kept).max() <= 2e-6
        for more, says in (
            ({"input": long, "truncate": False}, "the context has room for 96: give"),
            ({"input": "a", "dimensions": 7}, "supported: 32"),
            ({"input": [""] * 2049}, "2048"),
            ({"input": "a", "model": "another"}, "another"),
        ):
            got = server.http.post("/api/embed", json={"model": "made", **more})
            assert got.status_code in (400, 404)
            assert says in got.json()["error"]


def test_what_is_cut_keeps_its_end():
    """As much as there is room for, and behind it the tokens that end every text."""
    tokenizer = SimpleNamespace(special_ids={1, 2, 3})
    service = SimpleNamespace(context=5, prompts=SimpleNamespace(tokenizer=tokenizer))
    assert cut(service, [1, 10, 11, 12, 2]) == [1, 10, 11, 12, 2]
    assert cut(service, [1, 10, 11, 12, 13, 14]) == [1, 10, 11, 12, 13]
    assert cut(service, [1, 10, 11, 12, 13, 14, 2]) == [1, 10, 11, 12, 2]
    assert cut(service, [1, 10, 11, 12, 13, 14, 2, 3]) == [1, 10, 11, 2, 3]


def test_beside_answers(made):
    """Embeddings are computed between the steps of an answer, whose tokens stay the same."""
    server, _ = made
    alone = server.chat(max_tokens=40).json()["choices"][0]["message"]["content"]
    first = server.http.post("/v1/embeddings", json={"input": TEXTS}).json()["data"]
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 40}
    with server.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as got:
        lines = got.iter_lines()
        next(lines)
        again = server.http.post("/v1/embeddings", json={"input": TEXTS}).json()["data"]
        told = [json.loads(one[6:]) for one in lines if one.startswith("data: {")]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in told)
    assert text == alone
    assert again == first


@pytest.mark.parametrize("count", [65, pytest.param(2048, marks=pytest.mark.slow)])
def test_many(made, count):
    """OpenAI's most are taken, each has its place, and others are answered meanwhile."""
    server, _ = made
    texts = [TEXTS[index % 3] for index in range(count)]
    few = server.http.post("/v1/embeddings", json={"input": TEXTS}).json()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.http.post, "/v1/embeddings", json={"input": texts}, timeout=300)
        said = server.chat(max_tokens=4)
        assert count < 2048 or not asked.done()
        assert said.json()["usage"]["completion_tokens"] > 0
        many = asked.result()
    assert many.status_code == 200, many.text
    assert [one["index"] for one in many.json()["data"]] == list(range(count))
    vectors = np.array([one["embedding"] for one in few["data"]])
    got = np.array([one["embedding"] for one in many.json()["data"]])
    assert np.abs(got - vectors[np.arange(count) % 3]).max() <= 2e-6


def test_where_there_is_no_room(made, monkeypatch):
    """The first text is refused; a later one waits, as what is there would be lost."""
    server, _ = made
    full, embedding = [], server.service.embedding

    def sometimes(*arguments):
        full.append(None)
        if len(full) in (1, 3, 4):
            msg = "too many wait"
            raise BusyError(msg)
        return embedding(*arguments)

    monkeypatch.setattr(server.service, "embedding", sometimes)
    ask = partial(server.http.post, "/v1/embeddings", json={"input": TEXTS})
    assert ask().status_code == 429
    assert len(ask().json()["data"]) == 3
    assert len(full) == 6


@pytest.mark.parametrize("one", ["a", [1]])
def test_too_many(made, one):
    """The limit is named, not what a list of fewer could be besides."""
    server, _ = made
    got = server.http.post("/v1/embeddings", json={"input": [one] * 2049})
    said = "input has 2049 elements; supported: at most 2048 elements"
    assert (got.status_code, got.json()["error"]["message"]) == (400, said)
    got = server.http.post("/v1/completions", json={"prompt": [one] * 65})
    said = "prompt has 65 elements; supported: at most 64 elements"
    assert (got.status_code, got.json()["error"]["message"]) == (400, said)


def test_what_is_wrong(made):
    """Is said of each field."""
    server, _ = made
    for body, what in (
        ({"input": []}, "input"),
        ({"input": [[999999]]}, "token 999999"),
        ({"input": "a", "dimensions": 7}, "supported: the model's, 32"),
        ({"input": "the " * 200}, "input has 201 tokens"),
        ({"input": ["a", "the " * 200]}, "the context has room for 96"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "surplus": 1}, "surplus"),
    ):
        got = server.http.post("/v1/embeddings", json=body)
        assert got.status_code == 400, got.text
        assert what in got.json()["error"]["message"]
    assert got.json()["errors"]
    long = server.http.post("/v1/embeddings", json={"input": ["a", "the " * 200]}).json()
    assert long["errors"][0]["field"] == long["error"]["param"] == "input.1"
    assert long["error"]["code"] == "context_length_exceeded"
    assert server.http.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_a_model_that_writes(server):
    """Has none, and says so."""
    got = server.http.post("/v1/embeddings", json={"input": "a"})
    assert got.status_code == 400
    assert got.json()["error"]["code"] == "embeddings_not_supported"


def test_of_a_folder(tiny, tmp_path):
    """Sentence-transformers' file is read; in pieces of any size the vector is the same."""
    folder = tiny.folder(tmp_path / "folder")
    (folder / "1_Pooling").mkdir()
    said = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False}
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps({**said, "pooling_mode_mean_tokens": True}))
    llm = LLM.load(folder)
    embedder = Embedder(llm.model)
    ids = llm.tokenizer.encode(TEXTS[2], add_special=True)
    truth = expected(tiny, ids, "mean")
    for step in (512, 7, 1):
        assert np.abs(embedder.vector(ids, step=step) - truth).max() <= 2e-6
    with pytest.raises(ModelError, match="the text has 0 tokens"):
        embedder.vector([])
    file.write_text("{")
    with pytest.raises(ModelError, match="1_Pooling"):
        LLM.load(folder)
