"""A conversation that keeps its keys and values: only new tokens are computed."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from propolis.errors import ArgumentTypeError
from propolis.errors import UsageError
from propolis_workers.arguments import expect_text
from propolis_workers.arguments import expect_whole
from propolis_workers.llm.answer import expect_prompt
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
        if not hasattr(llm, "engine"):
            msg = f"llm is a {type(llm).__name__}; supported: an LLM, as LLM.load gives"
            raise ArgumentTypeError(msg)
        if system is not None:
            expect_text("system", system)
        self._llm = llm
        self._system = system
        # Not the whole context of a model made for 128k tokens: on a device its keys and
        # values are real memory.
        usual = min(DEFAULT_CONTEXT, llm.config.context_length)
        self._engine = llm.engine(usual if context is None else context)
        self._seen: list[int] = []
        self._turn: Turn | None = None
        self.messages: list[dict[str, str]] = []
        self.reset()

    @property
    def capacity(self) -> int:
        """Tokens of all messages together, answers included."""
        return self._engine.capacity

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
    ) -> Turn:
        """
        Say something; iterate over the result for the answer.

        The exchange joins the conversation when the answer is complete, or stopped.  Until
        then the conversation is as it was, whatever happens.

        Where it no longer fits into the context, with room for an answer of ``max_tokens``
        (or of half the context), its oldest exchanges are dropped: ``dropped`` of the result.

        Returns:
            The answer.  Its iteration raises UsageError once something else was said.

        Raises:
            ModelError: the text alone does not fit into the context; nothing is dropped for it.
            ArgumentTypeError: the text is a batch of them, or nothing.
            UsageError: the text or an option cannot be used.
        """
        expect_text("text", text)
        max_tokens = expect_whole("max_tokens", max_tokens, least=1)
        every = [*self.messages, {"role": "user", "content": text}]
        messages, ids = self._fitted(every, max_tokens)
        expect_prompt(ids, len(ids), self.capacity, self._llm.config, self._llm.tokenizer)
        # What the model saw and the new prompt share is in the cache already; the
        # last token of the prompt is run again, for its logits.
        shared = _common_prefix(self._seen, ids[:-1])
        if not self._engine.keeps(shared):
            shared = 0  # windows have moved on: what they saw back then is computed again
        turn = Turn(
            self._engine,
            self._llm.tokenizer,
            ids[shared:],
            params=params,
            max_tokens=max_tokens,
            stops=stops,
            history=ids[:shared],
            path=self._llm.path,
        )
        turn.conversation, turn.messages, turn.ids = self, messages, ids
        first = _beginning(messages)
        turn.dropped = every[first : first + len(every) - len(messages)]
        self._engine.truncate(shared)
        self._seen = ids[:shared]
        self._turn = turn
        return turn

    def _fitted(
        self, messages: list[dict[str, str]], max_tokens: int
    ) -> tuple[list[dict[str, str]], list[int]]:
        """The messages that leave room for an answer, and their tokens."""
        room = min(max_tokens, self.capacity // 2)
        ids = self._tokens(messages)
        if len(ids) + room <= self.capacity:
            return messages, ids
        first = _beginning(messages)
        starts = [i for i, message in enumerate(messages) if message["role"] == "user"]
        rests = [messages[:first] + messages[start:] for start in starts]
        # More goes at once than must: all that follows is computed again, and that should not
        # be with each thing said.
        enough = self.capacity * 3 // 4 - room
        fits = bisect_left(rests, True, key=lambda rest: len(self._tokens(rest)) <= enough)
        kept = rests[min(fits, len(rests) - 1)]
        return kept, self._tokens(kept)

    def _tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self._llm.tokenizer.encode(self._llm.render(messages))

    def _check_current(self, turn: Turn) -> None:
        if self._turn is not turn:
            msg = "the conversation has moved on: say it again for another answer"
            raise UsageError(msg)

    def _join(self, turn: Turn) -> None:
        # Tokens that were drawn and never run, as the last one, are not in the cache.
        self._seen = (turn.ids + turn.finish.ids)[: self._engine.position]
        self.messages = [*turn.messages, {"role": "assistant", "content": turn.finish.text}]
        self._turn = None
        turn.joined = True


class Turn(Generation):
    """
    The answer to one thing said.

    Attributes:
        conversation: whose engine it runs on, as long as nothing else is said.
        messages: all up to the answer.
        ids: their tokens.
        dropped: the oldest messages, for which the context has no room any more.
        joined: whether the exchange is in the conversation.
        stopped: whether it was ended before its end: nothing more of it comes.
    """

    conversation: Conversation
    messages: list[dict[str, str]]
    ids: list[int]
    dropped: list[dict[str, str]]
    joined: bool = False
    stopped: bool = False

    def stop(self) -> bool:
        """
        End the answer where it is: what was shown of it joins the conversation.

        Returns:
            Whether the exchange is in the conversation: it is not where nothing was shown,
            or something else was said since.
        """
        talk = self.conversation
        if talk._turn is self:  # noqa: SLF001  (one unit)
            self.stopped = True
            if self._answer.finish.text:
                self.finish.stop_reason = "INTERRUPTED"
                talk._join(self)  # noqa: SLF001
            talk._turn = None  # noqa: SLF001
        return self.joined

    def _shown(self) -> Iterator[str]:
        talk = self.conversation
        if self.stopped:
            return
        talk._check_current(self)  # noqa: SLF001
        for piece in super()._shown():
            yield piece
            if self.stopped:
                return
            talk._check_current(self)  # noqa: SLF001
        talk._join(self)  # noqa: SLF001


def _beginning(messages: Sequence[dict[str, str]]) -> int:
    """Where the first exchange begins: after the system message."""
    return 1 if messages[0]["role"] == "system" else 0


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
