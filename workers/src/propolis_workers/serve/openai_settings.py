"""What OpenAI's API says of how tokens are drawn, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.grammar import lark_grammar
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.schemas import listed_only
from propolis_workers.llm.stopping import Ending
from propolis_workers.llm.stopping import StopStrings
from propolis_workers.serve.answering import seed_of
from propolis_workers.serve.openai_types import ChatRequest
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import of_field


if TYPE_CHECKING:
    from propolis_workers.serve.openai_types import CompletionRequest
    from propolis_workers.serve.service import Service


def requests_of(
    service: Service,
    asked: ChatRequest | CompletionRequest,
    prompts: list[list[int]],
    most: int | None,
    logprobs: int | None,
    grammar: str | None = None,
    shown: tuple[int, ...] = (),
) -> list[Request]:
    """
    A request for each choice of each prompt.

    Args:
        service: what answers.
        asked: the body.
        prompts: their tokens.
        most: tokens that each may draw; as many as there is room for when None.
        logprobs: how many of the likeliest are told with each; None for no probabilities.
        grammar: what each answer has to follow.
        shown: control tokens that are text all the same.

    Raises:
        ProblemError: a field asks for what cannot be.
        PropolisError: a prompt leaves no room, or there is none for so many requests.
    """
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    with of_field("stop"):
        StopStrings(stops)  # says what is wrong with them
    ending = _ending(service, asked, most, grammar)
    with of_field("n"):
        service.engine.expect_room(len(prompts) * (asked.n or 1))
    context, requests = service.context, []
    for ids in prompts:
        with of_field("messages" if isinstance(asked, ChatRequest) else "prompt"):
            service.expect_prompt(ids)
        for choice in range(asked.n or 1):
            params = _params(asked, choice, service.prompts.tokenizer.vocab_size)
            room = context - len(ids)
            _expect_length(asked, most, room)
            requests.append(
                Request(
                    prompt=ids,
                    params=params,
                    max_tokens=room if most is None else min(max(most, 1), room),
                    stops=tuple(stops),
                    logprobs=logprobs,
                    grammar=grammar,
                    shown=shown,
                    ending=ending,
                )
            )
    return requests


def _expect_length(asked: ChatRequest | CompletionRequest, most: int | None, room: int) -> None:
    """Refuse what asks for so many tokens, and not for up to so many, where there is less room."""
    wanted, name = asked.min_tokens or 0, "min_tokens"
    if asked.ignore_eos and most is not None and most > wanted:
        wanted, name = most, "max_tokens"
    if wanted > room:
        msg = f"{name} is {wanted}; the context has room for {room} tokens behind the prompt"
        raise ProblemError(400, msg, code="context_length_exceeded", param=name)


def _ending(
    service: Service, asked: ChatRequest | CompletionRequest, most: int | None, grammar: str | None
) -> Ending:
    """Which tokens end an answer, in vLLM's words."""
    least, known = asked.min_tokens or 0, service.prompts.tokenizer.vocab_size
    if most is not None and least > most:
        msg = f"min_tokens is {least}, more than the {most} that there may be at most"
        raise ProblemError(400, msg, param="min_tokens")
    if grammar is not None and (least or asked.ignore_eos):
        name = "min_tokens" if least else "ignore_eos"
        msg = f"{name} does not go with a form, or calls, that the answer has to follow: it ends "
        raise ProblemError(400, msg + "where these do; leave one of them out", param=name)
    ids = tuple(asked.stop_token_ids or ())
    if max(ids, default=0) >= known:
        msg = f"stop_token_ids names {max(ids)}; supported: ids of tokens, 0 to {known - 1}"
        raise ProblemError(400, msg, param="stop_token_ids")
    return Ending(ids=ids, ignore_eos=bool(asked.ignore_eos), min_tokens=least)


def _params(asked: ChatRequest | CompletionRequest, choice: int, known: int) -> SamplingParams:
    bias = {}
    for token, value in (asked.logit_bias or {}).items():
        if not token.isdecimal() or len(token) > len(str(known)) or int(token) >= known:
            msg = f"logit_bias names {token[:20]!r}; supported: ids of tokens, 0 to {known - 1}"
            raise ProblemError(400, msg, param="logit_bias")
        bias[int(token)] = value
    with of_field("logit_bias"):  # all others have their limits where the body is read
        return _sampling(asked, choice, bias)


def _sampling(
    asked: ChatRequest | CompletionRequest, choice: int, bias: dict[int, float]
) -> SamplingParams:
    def given(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    return SamplingParams(
        temperature=given(asked.temperature, 1.0),
        top_p=given(asked.top_p, 1.0),
        top_k=max(given(asked.top_k, 0), 0),  # -1 is vLLM's for all
        min_p=given(asked.min_p, 0.0),
        repetition_penalty=given(asked.repetition_penalty, 1.0),
        presence_penalty=given(asked.presence_penalty, 0.0),
        frequency_penalty=given(asked.frequency_penalty, 0.0),
        logit_bias=bias,
        seed=seed_of(asked.seed, choice),
    )


def grammar_of(asked: ChatRequest) -> str | None:
    """
    What the answer has to follow; None where it is any text.

    Raises:
        ProblemError: there is no grammar of that.
    """
    with of_field("response_format"):
        return _form(asked)


def _form(asked: ChatRequest) -> str | None:
    form = asked.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_grammar()
    if form.type == "grammar":
        return lark_grammar(form.grammar)
    schema = form.json_schema.schema_
    return json_grammar(listed_only(schema) if schema and form.json_schema.strict else schema)


__all__ = ["grammar_of", "requests_of"]
