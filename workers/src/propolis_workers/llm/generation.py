"""Draw tokens one by one and turn them into text that is safe to show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from propolis.errors import UsageError
from propolis_workers.llm.answer import Answer
from propolis_workers.llm.answer import expect_prompt
from propolis_workers.suspects import suspects


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Sequence
    from pathlib import Path

    from propolis_workers.llm.answer import Finish
    from propolis_workers.llm.engine import Engine
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.tokenizer import Tokenizer


class Generation:
    """
    One answer: iterate over it for pieces of text as they come.

    Nothing runs before that.  A loop that was left goes on where it stopped.
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
        self._answer = Answer(
            tokenizer,
            prompt,
            params=params,
            max_tokens=max_tokens,
            stops=stops,
            history=history,
            blame=None if path is None else partial(_blame, engine, path),
        )
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._ended = ended
        self._stream: Iterator[str] | None = None

    @property
    def finish(self) -> Finish:
        """
        How it went; complete once the iteration has ended.

        Raises:
            UsageError: it has not begun.
        """
        if self._stream is None:
            msg = 'nothing was generated yet: iterate over the answer first: "".join(answer)'
            raise UsageError(msg)
        return self._answer.finish

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
        engine, answer, config = self._engine, self._answer, self._engine.model.config
        end = engine.position + len(self._prompt)
        expect_prompt(self._prompt, end, engine.capacity, config, self._tokenizer)
        answer.start()
        token = self._first()
        while True:
            full = engine.position + 1 >= engine.capacity  # the token drawn counts too
            text, ended = answer.push(token, full=full)
            if text:
                yield text
            if ended:
                break
            token = self._next(token)
        if self._ended is not None:
            self._ended(engine)

    def _first(self) -> int:
        """The token after the prompt."""
        engine, answer, size = self._engine, self._answer, self._tokenizer.vocab_size
        if answer.greedy or not answer.drawable:
            return answer.draw(engine.prefill(self._prompt))
        found = engine.prefill_drawn(self._prompt, size, answer.chance())
        return answer.take_drawn(*found) if isinstance(found, tuple) else answer.draw(found)

    def _next(self, token: int) -> int:
        """The token after one that is appended."""
        engine, answer, size = self._engine, self._answer, self._tokenizer.vocab_size
        if answer.greedy:
            return answer.take(*engine.decode_likeliest(token, size))
        found = engine.decode_drawn(token, size, answer.chance()) if answer.drawable else None
        if found is not None:
            return answer.take_drawn(*found)
        if answer.among:
            return answer.draw_among(engine.decode_likely(token, size, answer.among, answer.weighs))
        return answer.draw(engine.decode(token))


def _blame(engine: Engine, path: Path) -> str:
    return suspects(engine.model.device, path, engine.model.config.dtype)
