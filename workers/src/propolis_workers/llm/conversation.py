"""A conversation that keeps its keys and values: only new tokens are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis_workers.llm.generation import Generation
from propolis_workers.llm.sampling import SamplingParams


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_workers.llm.session import LLM


GREEDY = SamplingParams()


class Conversation:
    """
    Messages so far, and the sequence that the model has seen of them.

    Attributes:
        messages: role and content of each, oldest first.
    """

    def __init__(self, llm: LLM, *, system: str | None = None, context: int | None = None) -> None:
        self._llm = llm
        self._system = system
        self._engine = llm.engine(context)
        self._seen: list[int] = []
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
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
    ) -> Turn:
        """
        Say something; iterate over the result for the answer.

        The exchange joins the conversation only when the answer is complete.

        Raises:
            ModelError: the conversation no longer fits into the context.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._llm.tokenizer.encode(self._llm.render(messages))
        # What the model saw and the new prompt share is in the cache already; the
        # last token of the prompt is run again, for its logits.
        shared = _common_prefix(self._seen, ids[:-1])
        self._engine.truncate(shared)
        generation = Generation(
            self._engine,
            self._llm.tokenizer,
            ids[shared:],
            params=params,
            max_tokens=max_tokens,
            stops=stops,
        )
        self._seen = ids[:shared]
        return Turn(self, generation, messages, ids)


class Turn(Generation):
    """The answer to one thing said."""

    def __init__(
        self,
        conversation: Conversation,
        generation: Generation,
        messages: list[dict[str, str]],
        ids: list[int],
    ) -> None:
        self._conversation = conversation
        self._generation = generation
        self._messages = messages
        self._ids = ids
        self.finish = generation.finish

    def __iter__(self) -> Iterator[str]:
        """Pieces of the answer; the conversation moves on when they end."""
        conversation = self._conversation
        yield from self._generation
        # The last token drawn was never run, so it is not in the cache.
        conversation._seen = self._ids + self.finish.ids[:-1]  # noqa: SLF001  (one unit)
        answer = {"role": "assistant", "content": self.finish.text}
        conversation.messages = [*self._messages, answer]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
