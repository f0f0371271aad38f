"""Answers that go on with what the assistant said last, and what changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from propolis.errors import UsageError
from propolis_workers.llm.prompts import Prompts


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("m.content", "m.content | trim")
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
# What ends with the very words that stand behind it, and with space.
BEGUN = ["It is", "It is ", "im_end", "<|im_end|>", " \n Of old:\n\n", "assistant"]


def conversation(begun):
    """A question, and the beginning of an answer."""
    return [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": begun}]


@pytest.fixture(scope="module")
def server(serving):
    """A server whose model's template thinks."""
    return serving(template=THINKING)


@pytest.mark.oracle
@pytest.mark.parametrize("template", [CHATML, TRIMMING, THINKING], ids=["plain", "trims", "thinks"])
@pytest.mark.parametrize("begun", BEGUN, ids=repr)
def test_as_transformers_has_it(llm, template, begun):
    """The prompt is that of transformers' ``continue_final_message``."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    texts, _ = utils.render_jinja_template(
        [conversation(begun)], chat_template=template, continue_final_message=True
    )
    prompts = Prompts(Path("m.gguf"), llm.tokenizer, template)
    assert prompts.render(conversation(begun), continued=True) == texts[0]


def test_a_template_that_leaves_it_out(llm):
    """What is not in the prompt cannot go on."""
    first = "{{ messages[0].content }}"
    with pytest.raises(UsageError, match="last message cannot be continued"):
        Prompts(Path("m.gguf"), llm.tokenizer, first).render(conversation("It"), continued=True)


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, "<|im_start|>assistant\nIt is"),
        ({"continue_final_message": True}, "<|im_start|>assistant\nIt is"),
        ({"continue_final_message": False}, "It is<|im_end|>\n<|im_start|>assistant\n<think>\n"),
    ],
)
def test_the_answer_goes_on(server, rendered, more, end):
    """With a text of the assistant's at the end the answer goes on, unless that is not wanted."""
    body = {"messages": conversation("It is"), "max_tokens": 1, **more}
    got = server.http.post("/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    assert rendered[-1].endswith(end)


@pytest.mark.parametrize(
    ("begun", "more", "status"),
    [
        ("It is", {"continue_final_message": True, "add_generation_prompt": False}, 200),
        ("It is", {"continue_final_message": False, "add_generation_prompt": True}, 200),
        ("It is", {"add_generation_prompt": True}, 400),
        (None, {"add_generation_prompt": True}, 200),
        (None, {"add_generation_prompt": False}, 400),
    ],
)
def test_both_of_vllms_names(server, begun, more, status):
    """``add_generation_prompt`` says the contrary, or is refused."""
    asked = conversation(begun) if begun else conversation("x")[:1]
    body = {"messages": asked, "max_tokens": 1, **more}
    got = server.http.post("/v1/chat/completions", json=body)
    assert got.status_code == status, got.text
    assert status == 200 or got.json()["error"]["param"] == "add_generation_prompt"


def test_nothing_to_go_on_with(server, rendered):
    """A last message of the user's is no beginning; one of nothing is as if it were not there."""
    asked = conversation("It is")[:1]
    body = {"messages": asked, "max_tokens": 1, "continue_final_message": True}
    got = server.http.post("/v1/chat/completions", json=body)
    assert (got.status_code, got.json()["error"]["param"]) == (400, "continue_final_message")
    for begun in (" ", "", "\n"):
        body = {"messages": conversation(begun), "max_tokens": 1}
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        assert rendered[-1].endswith("Which?<|im_end|>\n<|im_start|>assistant\n<think>\n")
    body = {"messages": conversation("")[1:], "max_tokens": 1}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert rendered[-1].count("assistant\n") == 2


def test_ollama_goes_on(server, rendered):
    """So does Ollama's chat."""
    body = {"messages": conversation("It is"), "stream": False, "options": {"num_predict": 1}}
    got = server.http.post("/api/chat", json=body)
    assert got.status_code == 200, got.text
    assert rendered[-1].endswith("<|im_start|>assistant\nIt is")


def test_what_changes_nothing(server):
    """Fields that clients send of who asks are taken; of modalities the one there is."""
    body = {"messages": conversation("It is"), "max_tokens": 2, "temperature": 0}
    more = {"safety_identifier": "a", "prompt_cache_key": "b", "modalities": ["text"]}
    plain, told = (
        server.http.post("/v1/chat/completions", json=body | own).json()["choices"]
        for own in ({}, more)
    )
    assert told == plain
    got = server.http.post("/v1/chat/completions", json=body | {"modalities": ["audio"]})
    assert (got.status_code, "supported: 'text'" in got.text) == (400, True)


def test_effort_is_the_templates(serving, monkeypatch):
    """``reasoning_effort`` is a variable of the model's template."""
    server = serving(template=CHATML + "{{ reasoning_effort }}")
    found = []
    encode = server.service.prompts.tokenizer.encode
    monkeypatch.setattr(
        server.service.prompts.tokenizer,
        "encode",
        lambda text, **options: (found.append(text), encode(text, **options))[1],
    )
    body = {"messages": conversation("x")[:1], "max_tokens": 1, "reasoning_effort": "low"}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert found[-1].endswith("low")


def test_choices_are_nobody_elses(server):
    """The choices of a seed are not those of the next seed."""
    body = {"messages": conversation("It is")[:1], "max_tokens": 8, "temperature": 1.5, "n": 3}
    told = [
        [
            choice["message"]["content"]
            for choice in server.http.post(
                "/v1/chat/completions", json=body | {"seed": seed}
            ).json()["choices"]
        ]
        for seed in (7, 8, 9)
    ]
    assert len({text for own in told for text in own}) == 9
    alone = server.http.post("/v1/chat/completions", json=body | {"seed": 8, "n": 1}).json()
    assert alone["choices"][0]["message"]["content"] == told[1][0]
