"""One answer as it is drawn: which token comes next, what may be shown, and why it ended."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal

import numpy as np

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis_workers.arguments import expect_whole
from propolis_workers.llm.among import places_among
from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.drawing import Chance
from propolis_workers.llm.drawing import Odds
from propolis_workers.llm.sampling import NoTokenError
from propolis_workers.llm.sampling import Sampler
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.sampling import expect_likely
from propolis_workers.llm.stopping import Ending
from propolis_workers.llm.stopping import StopStrings


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterator
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.grammar import Constraint
    from propolis_workers.llm.rows import Likely
    from propolis_workers.llm.tokenizer import Tokenizer


OWN: Final = Ending()
StopReason = Literal["EOS", "MAX_TOKENS", "STOP_SEQUENCE", "CONTEXT_FULL", "INTERRUPTED"]


@dataclass(slots=True)
class Finish:
    """
    How a generation went.

    Attributes:
        text: what was shown, without the stop string.
        ids: the tokens drawn, the end-of-text token included.
        prompt_tokens: tokens of the prompt; of a conversation those that were run, not those kept.
        cached_tokens: of those of the prompt, how many were found in a cache that sequences share.
        prefill_seconds: from the start to the first token.
        decode_seconds: from the first token to the last.
        stop_reason: why it ended; "INTERRUPTED" while it has not.
        stop_string: the stop string that matched, or None.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    stop_reason: StopReason = "INTERRUPTED"
    stop_string: str | None = None

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (len(self.ids) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def expect_params(params: object) -> None:
    """
    Check how tokens are drawn.

    Raises:
        ArgumentTypeError: it is something else, such as a dictionary.
    """
    if not isinstance(params, SamplingParams):
        msg = f"params is a {type(params).__name__}; supported: SamplingParams, such as "
        msg += "SamplingParams(temperature=1)"
        raise ArgumentTypeError(msg)


def draw_together(answers: Sequence[Answer], likely: Sequence[Likely]) -> list[int | None]:
    """
    The next tokens of several answers, as :meth:`Answer.draw_among` draws them one by one.

    Nothing of the answers is changed: each has to :meth:`Answer.take_drawn` its own.

    Args:
        answers: whose :attr:`Answer.among` is not 0, and which are not greedy.
        likely: of each as many.

    Returns:
        None where one has to be drawn by itself: it may be none of the likeliest, or they are
        infinite or NaN.
    """
    if not likely:
        return []
    logits, ids = np.stack([one.logits for one in likely]), np.stack([one.ids for one in likely])
    usual = np.flatnonzero(np.isfinite(logits[:, 0]) & ~np.isnan(logits).any(1)).tolist()
    tokens: list[int | None] = [None] * len(likely)
    if usual:
        samplers = [answers[row]._sampler for row in usual]  # noqa: SLF001  (this module's own)
        params = [sampler.params for sampler in samplers]
        keys = np.array([sampler.key for sampler in samplers], np.uint64)
        masses = [likely[row].mass for row in usual]
        places = places_among(params, keys, logits[usual], ids[usual], masses)
        for row, place in zip(usual, places, strict=True):
            tokens[row] = int(ids[row, place]) if place >= 0 else None
    return tokens


class Answer:
    """
    The tokens of one answer and their text, whoever computes the logits.

    Attributes:
        finish: how it goes; complete once :meth:`push` says that it has ended.
        tokens: the prompt's and those drawn, and what was before them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        params: SamplingParams,
        max_tokens: int,
        stops: Sequence[str] = (),
        ending: Ending = OWN,
        history: Sequence[int] = (),
        blame: Callable[[], str] | None = None,
        constraint: Constraint | None = None,
        shown: Collection[int] = (),
    ) -> None:
        """
        Begin before the first token.

        Args:
            tokenizer: of the model.
            prompt: tokens that are run for it.
            params: how tokens are drawn.
            max_tokens: the most tokens to draw.
            stops: strings that end the text; they are not part of it.
            ending: which tokens end it.
            history: tokens before the prompt's; penalties count them.
            blame: says whom to suspect where there is no token to draw.
            constraint: what the text has to follow.
            shown: control tokens that are text all the same.

        Raises:
            UsageError: ``max_tokens`` or the stop strings are not as described.
        """
        self._max_tokens = expect_whole("max_tokens", max_tokens, least=1)
        self.finish = Finish(prompt_tokens=len(prompt))
        self.tokens = [*history, *prompt]
        self._tokenizer = tokenizer
        self._sampler = Sampler(params)
        top_k = min(params.top_k, tokenizer.vocab_size)
        self._odds = Odds(params.temperature, top_k, params.top_p, params.min_p)
        self._stops = StopStrings(stops)
        self._ending = ending
        self._ends = ending.of(tokenizer.eos_ids)
        self._detokenizer = Detokenizer(tokenizer, shown=shown)
        self._blame = blame
        self._constraint = constraint
        self._started = self._first = 0.0

    @property
    def greedy(self) -> bool:
        """Whether the next token is the likeliest, whatever the others are."""
        return self.among == 1 and self._sampler.greedy

    @property
    def among(self) -> int:
        """How many of the likeliest tokens nearly always do; 0 where all may matter."""
        return 0 if self._constraint is not None or self._barred else self._sampler.among

    @property
    def drawable(self) -> bool:
        """Whether a device may find the next token: the likeliest, or one by :meth:`chance`."""
        return self._constraint is None and not self._barred and self._sampler.drawable

    @property
    def _barred(self) -> frozenset[int]:
        """Tokens that may not be drawn yet."""
        return self._ending.barred(self._tokenizer.eos_ids, len(self.finish.ids))

    @property
    def weighs(self) -> float:
        """The temperature at which all tokens are weighed too; 0 where they need not be."""
        return self._sampler.weighs

    @property
    def left(self) -> int:
        """Tokens that may still be drawn."""
        return self._max_tokens - len(self.finish.ids)

    def start(self) -> None:
        """Count the time to the first token from now."""
        self._started = self._first = time.perf_counter()

    def draw(self, logits: NDArray[np.floating[Any]]) -> int:
        """
        The next token.

        Args:
            logits: (at least the vocabulary,), after the last token.

        Raises:
            NoTokenError: the weights or an op are wrong: there is no token to draw.
        """
        # Rows that pad the embedding are no tokens.
        logits = logits[: self._tokenizer.vocab_size]
        if self._constraint is not None:
            logits = self._constraint.allowed(logits)
        if barred := [token for token in self._barred if token < logits.size]:
            logits = logits.copy()
            logits[barred] = -np.inf
        with self._blaming():
            return self._sampler.sample(logits, self.tokens)

    def draw_among(self, likely: Likely) -> int:
        """
        The next token, where somebody else found the likeliest.

        Args:
            likely: at least :attr:`among` of them, weighed at :attr:`weighs`.

        Raises:
            NoTokenError: as for :meth:`draw`.
        """
        with self._blaming():
            token = self._sampler.sample_among(likely.logits, likely.ids, likely.mass)
        return self.draw(likely.row()) if token is None else token

    def chance(self) -> Chance:
        """By what a device draws the next token and those after it, where :attr:`drawable`."""
        return Chance(self._odds, self._sampler.key_of)

    def take_drawn(self, token: int, logit: float = 0.0) -> int:
        """
        The next token, where it has been drawn already: by a device, or :func:`draw_together`.

        Args:
            token: what was drawn.
            logit: the likeliest token's, where nobody has looked at it.

        Raises:
            NoTokenError: as for :meth:`draw`.
        """
        with self._blaming():
            expect_likely(logit)
        self._sampler.use_key()
        return token

    def take(self, token: int, logit: float) -> int:
        """
        The next token, where it is the likeliest and somebody else found it.

        Args:
            token: the likeliest.
            logit: its own.

        Raises:
            NoTokenError: as for :meth:`draw`.
        """
        self.expect_numbers(logit)
        return token

    def expect_numbers(self, logit: float) -> None:
        """
        Check one of the logits that the answer depends on.

        Raises:
            NoTokenError: it is NaN; the message says what to suspect.
        """
        with self._blaming():
            expect_likely(logit)

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        try:
            yield
        except NoTokenError as exc:
            if self._blame is None:
                raise
            msg = f"{exc}; {self._blame()}"
            raise NoTokenError(msg) from exc

    def push(self, token: int, *, full: bool) -> tuple[str, bool]:
        """
        Take the next token.

        Args:
            token: as drawn.
            full: whether the sequence has no room for another after it.

        Returns:
            The text that it makes safe to show, and whether the answer has ended.
        """
        finish = self.finish
        finish.ids.append(token)
        self.tokens.append(token)
        if self._constraint is not None:
            self._constraint.push(token)
        now = time.perf_counter()
        if len(finish.ids) == 1:
            finish.prefill_seconds, self._first = now - self._started, now
        finish.decode_seconds = now - self._first
        text, ended = "", True
        if token in self._ends:
            finish.stop_reason = "EOS"
        else:
            text, ended = self._detokenizer.push(token), False
            if len(finish.ids) > self._ending.min_tokens:
                text, ended = self._stops.push(text)
            if not ended and len(finish.ids) >= self._max_tokens:
                finish.stop_reason, ended = "MAX_TOKENS", True
            elif not ended and full:
                finish.stop_reason, ended = "CONTEXT_FULL", True
        if ended:
            text += self._stops.push(self._detokenizer.flush())[0] + self._stops.flush()
            # Of stop strings that begin alike, the end may be what decides.
            if self._stops.matched is not None:
                finish.stop_reason, finish.stop_string = "STOP_SEQUENCE", self._stops.matched
        finish.text += text
        return text, ended


def longer(capacity: int, longest: int) -> str:
    """What else helps where a context is too short, if anything does; ends a message."""
    return f", or raise the context (the model's is {longest})" if capacity < longest else ""


def expect_prompt(
    ids: Sequence[int], end: int, capacity: int, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    """
    Check a prompt before anything is run.

    Args:
        ids: its tokens.
        end: tokens of the sequence with it.
        capacity: tokens that the sequence may have.
        config: the model's numbers.
        tokenizer: the model's.

    Raises:
        ModelError: it leaves no room for an answer, or holds a token that the model does not know.
    """
    if not ids:
        msg = "the prompt is empty: give at least one token"
        raise ModelError(msg)
    if min(ids) < 0:
        msg = f"token {min(ids)} of the prompt is negative: ids begin at 0"
        raise ModelError(msg)
    if end >= capacity:
        msg = (
            f"the prompt takes {end} tokens, the context is {capacity}: no room for an answer; "
            f"shorten the prompt{longer(capacity, config.context_length)}"
        )
        raise ModelError(msg)
    top = max(ids, default=0)
    if top >= config.vocab_size:
        text = tokenizer.decode([top])
        msg = (
            f"token {top} ({text!r:.40}) has no embedding: the tokenizer has "
            f"{tokenizer.vocab_size} tokens, the weights {config.vocab_size}: "
            f"use the tokenizer that belongs to the weights"
        )
        raise ModelError(msg)


__all__ = ["Answer", "Finish", "StopReason", "expect_prompt", "longer"]
