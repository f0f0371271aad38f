"""Draw tokens one by one and turn them into text that is safe to show."""

from __future__ import annotations

import time
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal

from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.sampling import NoTokenError
from propolis_workers.llm.sampling import Sampler
from propolis_workers.llm.stopping import StopStrings
from propolis_workers.suspects import suspects


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from propolis_workers.llm.engine import Engine
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.tokenizer import Tokenizer


StopReason = Literal["EOS", "MAX_TOKENS", "STOP_SEQUENCE", "CONTEXT_FULL", "INTERRUPTED"]


@dataclass(slots=True)
class Finish:
    """
    How a generation went.

    Attributes:
        text: what was shown, without the stop string.
        ids: the tokens drawn, the end-of-text token included.
        prompt_tokens: tokens of the prompt that were run (not those kept in cache).
        prefill_seconds: from the start to the first token.
        decode_seconds: from the first token to the last.
        stop_reason: why it ended.
        stop_string: the stop string that matched, or None.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    stop_reason: StopReason = "MAX_TOKENS"
    stop_string: str | None = None

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (len(self.ids) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def expect_max_tokens(max_tokens: object) -> None:
    """
    Check the most tokens that an answer may have.

    Raises:
        UsageError: it is no integer from 1.
    """
    if type(max_tokens) is not int or max_tokens < 1:
        msg = f"max_tokens is {max_tokens!r}; allowed: an integer from 1"
        raise UsageError(msg)


class Generation:
    """
    One answer: iterate over it for pieces of text as they come.

    Nothing runs before that.  A loop that was left goes on where it stopped.

    Attributes:
        finish: how it went; complete once the iteration has ended.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        params: SamplingParams,
        max_tokens: int,
        stops: Sequence[str] = (),
        history: Sequence[int] = (),
        path: Path | None = None,
        ended: Callable[[Engine], None] | None = None,
    ) -> None:
        """
        Prepare to generate.

        Args:
            engine: the sequence so far; the prompt is appended to it.
            tokenizer: of the model.
            prompt: tokens to append before the first draw.
            params: how tokens are drawn.
            max_tokens: the most tokens to draw.
            stops: strings that end the text; they are not part of it.
            history: tokens that the engine has already; penalties count them.
            path: the model's file or folder, for the error that says how to find out why
                it gives no token.
            ended: called once the answer is complete, with the sequence that is free then.

        Raises:
            UsageError: ``max_tokens`` or the stop strings are not as described.
        """
        expect_max_tokens(max_tokens)
        self.finish = Finish(prompt_tokens=len(prompt))
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._history = [*history, *prompt]
        self._path = path
        self._ended = ended
        self._sampler = Sampler(params)
        self._max_tokens = max_tokens
        self._stops = StopStrings(stops)
        self._stream: Iterator[str] | None = None

    def __iter__(self) -> Iterator[str]:
        """
        Pieces of text, each whole characters, as soon as they cannot be taken back.

        Raises:
            ModelError: the prompt leaves no room for an answer, or holds a token that the
                model does not know, and nothing was run; or an op or the weights are wrong,
                so that there is no token to draw.
        """
        if self._stream is None:
            self._stream = self._shown()
        return self._stream

    def _shown(self) -> Iterator[str]:
        for piece in self._pieces():
            if piece:
                self.finish.text += piece
                yield piece

    def _pieces(self) -> Iterator[str]:
        finish, engine, stops = self.finish, self._engine, self._stops
        detokenizer = Detokenizer(self._tokenizer)
        # Rows that pad the embedding are no tokens.
        known = self._tokenizer.vocab_size
        self._check_prompt()
        start = time.perf_counter()
        logits = engine.prefill(self._prompt)
        first = start
        while True:
            token = self._sampled(logits[:known])
            finish.ids.append(token)
            self._history.append(token)
            now = time.perf_counter()
            if len(finish.ids) == 1:
                finish.prefill_seconds, first = now - start, now
            finish.decode_seconds = now - first
            if token in self._tokenizer.eos_ids:
                finish.stop_reason = "EOS"
                break
            text, stopped = stops.push(detokenizer.push(token))
            yield text
            if stopped:
                break
            if len(finish.ids) >= self._max_tokens:
                finish.stop_reason = "MAX_TOKENS"
                break
            if engine.position + 1 >= engine.capacity:  # the token drawn counts too
                finish.stop_reason = "CONTEXT_FULL"
                break
            logits = engine.decode(token)
        yield stops.push(detokenizer.flush())[0]
        yield stops.flush()
        # Of stop strings that begin alike, the end may be what decides.
        if stops.matched is not None:
            finish.stop_reason, finish.stop_string = "STOP_SEQUENCE", stops.matched
        if self._ended is not None:
            self._ended(engine)

    def _sampled(self, logits: NDArray[np.floating[Any]]) -> int:
        """The next token; where there is none, the error says whom to suspect."""
        try:
            return self._sampler.sample(logits, self._history)
        except NoTokenError as exc:
            if self._path is None:
                raise
            msg = f"{exc}; {suspects(self._engine.model.device, self._path)}"
            raise ModelError(msg) from exc

    def _check_prompt(self) -> None:
        config = self._engine.model.config
        end, capacity = self._engine.position + len(self._prompt), self._engine.capacity
        if end >= capacity:
            msg = (
                f"the prompt takes {end} tokens, the context is {capacity}: no room for an answer; "
                f"shorten the prompt, or raise the context (the model's is {config.context_length})"
            )
            raise ModelError(msg)
        top = max(self._prompt, default=0)
        if top >= config.vocab_size:
            text = self._tokenizer.decode([top])
            msg = (
                f"token {top} ({text!r:.40}) has no embedding: the tokenizer has "
                f"{self._tokenizer.vocab_size} tokens, the weights {config.vocab_size}: "
                f"use the tokenizer that belongs to the weights"
            )
            raise ModelError(msg)
