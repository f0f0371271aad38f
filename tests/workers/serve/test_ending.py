"""Which tokens end an answer, as clients of vLLM ask for it: ignore_eos, min_tokens, and ids."""

from __future__ import annotations

import openai
import pytest


@pytest.fixture(scope="module")
def client(server):
    """The official client, unchanged."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def eos(llm):
    """One of the tokens that end the model's answers."""
    return min(llm.tokenizer.eos_ids)


def complete(client, *, temperature=0, max_tokens=12, likely=None, **extra):
    """An answer with its tokens; ``likely`` is drawn wherever it may be."""
    choice = client.completions.create(
        model="tiny",
        prompt="the ",
        temperature=temperature,
        max_tokens=max_tokens,
        seed=1,
        logit_bias={} if likely is None else {str(likely): 100},
        extra_body=extra,
    )
    return choice.choices[0], choice.usage.completion_tokens


def test_the_end_is_ignored(client, eos):
    """Its token is drawn and not shown, and the answer goes on to its limit."""
    choice, tokens = complete(client, likely=eos)
    assert (choice.finish_reason, tokens, choice.text) == ("stop", 1, "")
    choice, tokens = complete(client, likely=eos, ignore_eos=True)
    assert (choice.finish_reason, tokens, choice.text) == ("length", 12, "")


@pytest.mark.parametrize("temperature", [0, 1])
def test_no_end_before_so_many_tokens(client, eos, temperature):
    """Until then others are drawn, and then it is as likely as it was."""
    for least in (1, 5):
        choice, tokens = complete(client, temperature=temperature, likely=eos, min_tokens=least)
        assert (choice.finish_reason, tokens) == ("stop", least + 1)
        assert choice.text


def test_greedy_answers_are_the_same_until_then(client):
    """What is barred changes no other token."""
    plain, _ = complete(client)
    least, _ = complete(client, min_tokens=12)
    assert (plain.finish_reason, least.finish_reason) == ("stop", "length")
    assert least.text.startswith(plain.text)
    assert len(least.text) > len(plain.text)


def test_other_tokens_end_it(client, llm, eos):
    """As the model's own do, unless they come too early; these may be ignored beside them."""
    token = llm.tokenizer.encode("z")[0]
    assert token not in llm.tokenizer.eos_ids
    choice, tokens = complete(client, likely=token, stop_token_ids=[token])
    assert (choice.finish_reason, tokens, choice.text) == ("stop", 1, "")
    choice, tokens = complete(client, likely=token, stop_token_ids=[token], min_tokens=3)
    assert (choice.finish_reason, tokens) == ("stop", 4)
    choice, tokens = complete(client, likely=eos, stop_token_ids=[token], ignore_eos=True)
    assert (choice.finish_reason, tokens) == ("length", 12)


def test_strings_end_nothing_until_then(client, llm):
    """What would end an answer at once does so behind as many tokens."""
    token = llm.tokenizer.encode("z")[0]
    for least, tokens in ((0, 1), (4, 5)):
        got = client.completions.create(
            model="tiny",
            prompt="the ",
            temperature=0,
            max_tokens=12,
            stop="z",
            logit_bias={str(token): 100},
            extra_body={"min_tokens": least},
        )
        assert got.choices[0].finish_reason == "stop"
        assert (got.usage.completion_tokens, got.choices[0].text) == (tokens, "z" * least)


def test_the_end_is_barred_even_where_it_is_ignored(client, eos):
    """So that an answer of a length has as many tokens that say something."""
    choice, tokens = complete(client, likely=eos, ignore_eos=True, min_tokens=12)
    assert (choice.finish_reason, tokens) == ("length", 12)
    assert choice.text


def test_chances_of_what_is_no_end(client, llm, eos):
    """Those of tokens that are ignored are told; that of a token that ended it is not."""
    token = llm.tokenizer.encode("z")[0]
    for likely, extra, count in (
        (eos, {"ignore_eos": True}, 6),
        (eos, {}, 0),
        (token, {"stop_token_ids": [token]}, 0),
    ):
        got = client.completions.create(
            model="tiny",
            prompt="the ",
            temperature=0,
            max_tokens=6,
            logprobs=1,
            logit_bias={str(likely): 100},
            extra_body=extra,
        )
        told = got.choices[0].logprobs
        assert len(told.tokens if told else ()) == count


@pytest.mark.parametrize(
    ("extra", "param", "says"),
    [
        ({"min_tokens": 13}, "min_tokens", "more than the 12"),
        ({"min_tokens": -1}, "min_tokens", "-1"),
        ({"min_tokens": 96, "max_tokens": 1000}, "min_tokens", "room for 9"),
        ({"ignore_eos": True, "max_tokens": 1000}, "max_tokens", "room for 9"),
        ({"stop_token_ids": [1 << 40]}, "stop_token_ids", "ids of tokens, 0 to"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "64"),
        ({"ignore_eos": "yes"}, "ignore_eos", "true or false"),
    ],
)
def test_what_cannot_be(client, extra, param, says):
    """It is refused by its name."""
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **extra)
    assert caught.value.param == param
    assert says in caught.value.body["message"]


@pytest.mark.parametrize("extra", [{"min_tokens": 2}, {"ignore_eos": True}])
def test_forms_end_themselves(client, extra):
    """An answer that has to follow a form cannot go on behind its end."""
    with pytest.raises(openai.BadRequestError, match="does not go with a form"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "the thing"}],
            response_format={"type": "json_object"},
            extra_body=extra,
        )
