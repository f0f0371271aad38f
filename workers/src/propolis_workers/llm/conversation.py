"""A conversation that keeps its keys and values: only new tokens are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import UsageError
from propolis_workers.arguments import expect_text
from propolis_workers.llm.generation import Generation
from propolis_workers.llm.sampling import SamplingParams


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_workers.llm.session import LLM


GREEDY = SamplingParams()


DEFAULT_CONTEXT = 8192


class Conversation:
    """
    Messages so far, and the sequence that the model has seen of them.

    Attributes:
        messages: role and content of each, oldest first.
    """

    def __init__(self, llm: LLM, *, system: str | None = None, context: int | None = None) -> None:
        self._llm = llm
        self._system = system
        # Not the whole context of a model made for 128k tokens: on a device its keys and
        # values are real memory.
        self._engine = llm.engine(DEFAULT_CONTEXT if context is None else context)
        self._seen: list[int] = []
        self._turn: Generation | None = None
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._turn = None
        self.messages = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    def say(
        self,
        text: str,
        *,
        params: SamplingParams = GREEDY,
        max_tokens: int = 512,
        stops: Sequence[str] = (),
    ) -> Generation:
        """
        Say something; iterate over the result for the answer.

        The exchange joins the conversation when the answer is complete.  Until then the
        conversation is as it was, whatever happens.

        Returns:
            The answer.  Its iteration raises ModelError where the conversation no longer
            fits into the context, and UsageError once something else was said.

        Raises:
            ArgumentTypeError: the text is a batch of them, or nothing.
            UsageError: the text or an option cannot be used.
        """
        expect_text("text", text)
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._llm.tokenizer.encode(self._llm.render(messages))
        # What the model saw and the new prompt share is in the cache already; the
        # last token of the prompt is run again, for its logits.
        shared = _common_prefix(self._seen, ids[:-1])
        turn = _Turn(
            self._engine,
            self._llm.tokenizer,
            ids[shared:],
            params=params,
            max_tokens=max_tokens,
            stops=stops,
            history=ids[:shared],
        )
        turn.conversation, turn.messages, turn.ids = self, messages, ids
        self._engine.truncate(shared)
        self._seen = ids[:shared]
        self._turn = turn
        return turn

    def _check_current(self, turn: _Turn) -> None:
        if self._turn is not turn:
            msg = "the conversation has moved on: say it again for another answer"
            raise UsageError(msg)

    def _join(self, turn: _Turn) -> None:
        # The last token drawn was never run, so it is not in the cache.
        self._seen = turn.ids + turn.finish.ids[:-1]
        self.messages = [*turn.messages, {"role": "assistant", "content": turn.finish.text}]
        self._turn = None


class _Turn(Generation):
    """
    The answer to one thing said.

    Attributes:
        conversation: whose engine it runs on, as long as nothing else is said.
        messages: all up to the answer.
        ids: their tokens.
    """

    conversation: Conversation
    messages: list[dict[str, str]]
    ids: list[int]

    def _shown(self) -> Iterator[str]:
        talk = self.conversation
        talk._check_current(self)  # noqa: SLF001  (one unit)
        for piece in super()._shown():
            yield piece
            talk._check_current(self)  # noqa: SLF001
        talk._join(self)  # noqa: SLF001


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
