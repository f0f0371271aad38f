"""Draw tokens one by one and turn them into text that is safe to show."""

from __future__ import annotations

import time
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Literal

from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.sampling import Sampler
from propolis_workers.llm.stopping import StopStrings


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_workers.llm.engine import Engine
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.tokenizer import Tokenizer


StopReason = Literal["EOS", "MAX_TOKENS", "STOP_SEQUENCE", "CONTEXT_FULL"]


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


class Generation:
    """
    One answer: iterate over it for pieces of text as they come.

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
        """
        self.finish = Finish(prompt_tokens=len(prompt))
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._sampler = Sampler(params)
        self._max_tokens = max_tokens
        self._stops = StopStrings(stops)

    def __iter__(self) -> Iterator[str]:
        """Pieces of text, each whole characters, as soon as they cannot be taken back."""
        for piece in self._pieces():
            if piece:
                self.finish.text += piece
                yield piece

    def _pieces(self) -> Iterator[str]:
        finish, engine, stops = self.finish, self._engine, self._stops
        detokenizer = Detokenizer(self._tokenizer)
        start = time.perf_counter()
        logits = engine.prefill(self._prompt)
        first = start
        while True:
            token = self._sampler.sample(logits, self._prompt + finish.ids)
            finish.ids.append(token)
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
                finish.stop_reason, finish.stop_string = "STOP_SEQUENCE", stops.matched
                return
            if len(finish.ids) >= self._max_tokens:
                finish.stop_reason = "MAX_TOKENS"
                break
            if engine.position >= engine.capacity:
                finish.stop_reason = "CONTEXT_FULL"
                break
            logits = engine.decode(token)
        text, stopped = stops.push(detokenizer.flush())
        yield text
        if stopped:
            finish.stop_reason, finish.stop_string = "STOP_SEQUENCE", stops.matched
            return
        yield stops.flush()
