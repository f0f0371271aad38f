"""What OpenAI's API makes of tokens: chat completions and completions, whole and in pieces."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Any

from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.serve.openai_tools import call


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_workers.llm.batch.engine import Request
    from propolis_workers.serve.service import Service

Told = dict[str, Any]
_LENGTH = ("MAX_TOKENS", "CONTEXT_FULL")


class Chat:
    """What chat completions look like."""

    kind = "chat.completion"
    prefix = "chatcmpl"

    def __init__(self, service: Service) -> None:
        self._service = service

    def begin(self, index: int) -> Told | None:
        """The first piece of a stream."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}}

    def piece(self, index: int, one: Told) -> Told:
        """A piece of a stream."""
        delta: Told = {"content": one["text"]}
        if one.get("calls"):
            delta = {"content": one["text"]} if one["text"] else {}
            delta["tool_calls"] = [{"index": own["index"], **call(own)} for own in one["calls"]]
        return {"index": index, "delta": delta, "logprobs": self.likely(index, [one])}

    def end(self, index: int) -> Told:
        """The last piece of a stream, without its reason."""
        return {"index": index, "delta": {}}

    def whole(self, index: int, text: str, told: Sequence[Told]) -> Told:
        """An answer in one piece, without its reason."""
        message: Told = {"role": "assistant", "content": text, "refusal": None}
        calls = [call(own) for one in told for own in one.get("calls", ())]
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {"index": index, "message": message, "logprobs": self.likely(index, told)}

    def likely(self, _: int, told: Sequence[Told]) -> Told | None:
        """The probabilities of tokens; None where nobody asked."""
        content = [
            {
                **self._token(one["token"], one["logprobs"]["own"]),
                "top_logprobs": [self._token(*pair) for pair in one["logprobs"]["top"]],
            }
            for one in told
            if "logprobs" in one and not _ended(one)
        ]
        return {"content": content, "refusal": None} if content else None

    def _token(self, token: int, logprob: float) -> Told:
        raw = self._service.prompts.tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


class Text:
    """What completions look like."""

    kind = "text_completion"
    prefix = "cmpl"

    def __init__(
        self, service: Service, echoed: Sequence[tuple[str, list[int]]], *, scored: bool = False
    ) -> None:
        """
        Begin with nothing.

        Args:
            service: whose tokens they are.
            echoed: of each choice what its text begins with, and its tokens; nothing where the
                prompt is not echoed.
            scored: whether it is told how likely these tokens are.
        """
        self._service = service
        self._echoed = echoed
        self.scored = scored
        self._scored: defaultdict[int, int] = defaultdict(int)  # how many of the tokens were told
        self._starts = [_starts(service, text, ids) if scored else [] for text, ids in echoed]
        self._decoders: defaultdict[int, Detokenizer] = defaultdict(
            lambda: Detokenizer(service.prompts.tokenizer)
        )
        self._lengths = {index: len(text) for index, (text, _) in enumerate(echoed)}
        self._names: dict[int, str] = {}

    def begin(self, index: int) -> Told | None:
        """The first piece of a stream: the prompt, where it is wanted."""
        text, _ = self._echoed[index]
        return {"index": index, "text": text} if text else None

    def piece(self, index: int, one: Told) -> Told:
        """A piece of a stream."""
        return {"index": index, "text": one["text"], "logprobs": self.likely(index, [one])}

    def end(self, index: int) -> Told:
        """The last piece of a stream, without its reason."""
        return {"index": index, "text": ""}

    def whole(self, index: int, text: str, told: Sequence[Told]) -> Told:
        """An answer in one piece, without its reason."""
        likely = self.likely(index, told)
        return {"index": index, "text": self._echoed[index][0] + text, "logprobs": likely}

    def likely(self, index: int, told: Sequence[Told]) -> Told | None:
        """
        The probabilities of the next tokens of a text; None where nobody asked.

        Of an echoed prompt the first token has none.
        """
        every: list[tuple[int, Told | None, int]] = []
        for one in told:
            every += self._of_prompt(index, one.get("prompt", ()))
            # Who asks how likely a prompt was counts on a token for each that he asked for.
            if "logprobs" in one and (self.scored or not _ended(one)):
                token, start = one["token"], self._lengths[index]
                self._lengths[index] += len(self._decoders[index].push(token))
                every.append((token, one["logprobs"], start))
        if not every:
            return None
        return {
            "tokens": [self._named(token) for token, _, _ in every],
            "token_logprobs": [known and known["own"] for _, known, _ in every],
            "top_logprobs": [known and self._top(token, known) for token, known, _ in every],
            "text_offset": [start for _, _, start in every],
        }

    def _of_prompt(
        self, index: int, likely: Sequence[Told]
    ) -> Iterator[tuple[int, Told | None, int]]:
        """The next tokens of a prompt, what is known of them, and where they begin."""
        if not self.scored:
            return
        known = likely if self._scored[index] else (None, *likely)
        ids, starts = self._echoed[index][1], self._starts[index]
        for one in known:
            place = self._scored[index]
            self._scored[index] += 1
            yield ids[place], one, starts[place]

    def _top(self, token: int, known: Told) -> dict[str, float]:
        """The likeliest tokens, and the one that is there; of those that read alike, the first."""
        top: dict[str, float] = {}
        for other, value in (*known["top"], (token, known["own"])):
            top.setdefault(self._named(other), value)
        return top

    def _named(self, token: int) -> str:
        """What a token says; of one that is part of a character its bytes, as OpenAI has them."""
        if token not in self._names:
            self._names[token] = self._name(token)
        return self._names[token]

    def _name(self, token: int) -> str:
        text = self._service.text([token])
        if "\ufffd" not in text:
            return text
        raw = self._service.prompts.tokenizer.token_bytes(token)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _starts(service: Service, text: str, ids: Sequence[int]) -> list[int]:
    """Where each token of a text begins in it; what only begins the text of its tokens, at 0."""
    decoder, starts, end = Detokenizer(service.prompts.tokenizer, skip_special=False), [], 0
    for token in ids:
        starts.append(end)
        end += len(decoder.push(token))
    # A token that begins all texts, or a space, is in none that was given.
    more = max(end + len(decoder.flush()) - len(text), 0)
    return [min(max(start - more, 0), len(text)) for start in starts]


async def prompt_alone(answer: AsyncGenerator[Told]) -> AsyncGenerator[Told]:
    """What is told of a prompt by an answer of one token, which is left out."""
    async with aclosing(answer):
        async for one in answer:
            told = {name: value for name, value in one.items() if name != "logprobs"}
            if "finish" in one:
                told["prompt"] = []  # of a prompt of one token this is all that is told
                told["finish"] = {**one["finish"], "tokens": 0, "stop_reason": "MAX_TOKENS"}
            yield {**told, "text": ""}


def _ended(one: Told) -> bool:
    """Whether a token is no part of the answer, but ended it."""
    return bool("finish" in one and one["finish"]["stop_reason"] == "EOS")


def reason(finish: Told) -> str:
    """Why an answer ended, in OpenAI's words."""
    if finish["stop_reason"] in _LENGTH and not finish.get("whole"):
        return "length"
    return "tool_calls" if finish.get("called") else "stop"


def usage(requests: Sequence[Request], ends: Sequence[Told]) -> Told:
    """
    The tokens of requests and of how they ended, in the same order.

    Choices of one prompt count it once; the first of them may have computed what the others
    found in the cache, so that only what all of them found was there before.
    """
    prompts: dict[int, list[int]] = defaultdict(list)
    lengths: dict[int, int] = {}
    for request, end in zip(requests, ends, strict=True):
        prompts[id(request.prompt)].append(end["cached_tokens"])
        lengths[id(request.prompt)] = len(request.prompt)
    prompt = sum(lengths.values())
    drawn = sum(end["tokens"] for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": sum(map(min, prompts.values()))},
    }


__all__ = ["Chat", "Text", "prompt_alone", "reason", "usage"]
