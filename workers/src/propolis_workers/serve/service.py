"""A model that is served: what its routes ask, and its engine."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

from propolis.errors import ModelError
from propolis_workers.llm.answer import expect_prompt
from propolis_workers.llm.chat_template import ChatTemplate
from propolis_workers.llm.prompts import RAW
from propolis_workers.llm.prompts import Prompts
from propolis_workers.llm.prompts import open_model
from propolis_workers.serve import messages
from propolis_workers.serve.deadlines import Deadlines
from propolis_workers.serve.deadlines import threaded
from propolis_workers.serve.problems import not_served
from propolis_workers.serve.tool_use import with_calls


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Sequence
    from pathlib import Path

    from propolis_workers.llm.batch.engine import Request
    from propolis_workers.serve.engine import Engine
    from propolis_workers.serve.tool_use import ToolUse

    Told = dict[str, Any]
    Watch = Callable[[Request, AsyncGenerator[Told]], AsyncGenerator[Told]]


T = TypeVar("T")
# What whoever asks over HTTP can do without a chat template.
_RAW = (
    'give raw text to /v1/completions, or to /api/generate with "raw": true, or start the '
    "server with --chat-template FILE"
)


class Service:
    """
    A language model behind HTTP.

    Attributes:
        name: of the model, as clients call it.
        names: all that it answers to.
        config: its numbers.
        prompts: text to tokens.
        kind: of the file.
        nbytes: of its weights.
        parameters: numbers in them.
        quantisation: what most of these are kept as.
        engine: what computes.
        deadlines: of its answers.
        created: when it was made, in seconds since 1970.
        bound: the option that bounds its context.
        elsewhere: routes of the server's other model, by its name.
    """

    def __init__(
        self,
        path: Path,
        engine: Engine,
        *,
        deadline: float | None = None,
        template: str | None = None,
        name: str | None = None,
    ) -> None:
        """
        Read the vocabulary.

        Args:
            path: of the model.
            engine: what computes.
            deadline: the most seconds that an answer takes, whatever a request asks.
            template: a chat template in place of the model's own.
            name: of the model; by default the file's, which it answers to in any case.

        Raises:
            ModelError: the model cannot be used; the message says why and what to do.
        """
        source, self.config, tokenizer = open_model(path)
        self.kind = "gguf" if path.suffix == ".gguf" else "safetensors"
        self.nbytes = sum(info.nbytes for info in source.tensors.values())
        of_type = Counter[str]()
        for info in source.tensors.values():
            of_type[info.dtype.name] += math.prod(info.shape)
        self.parameters = of_type.total()
        self.quantisation = of_type.most_common(1)[0][0].upper()
        if template is not None:
            ChatTemplate(template)  # says what is wrong with it
        self.prompts = Prompts(path, tokenizer, template)
        self.deadlines = Deadlines(deadline)
        own = path.stem if path.suffix == ".gguf" else path.name
        self.name = name or own
        self.names = {"", self.name, own, path.name}
        self.engine = engine
        self.created = int(time.time())
        self.bound = "the context"
        self.elsewhere: dict[str, str] = {}
        self._watch: Watch | None = None
        self._context = 0

    def watch(self, watch: Watch) -> None:
        """Let somebody see each answer on its way."""
        self._watch = watch

    @property
    def context(self) -> int:
        """
        Tokens that a prompt and its answer may have; 0 before that is known.

        While an engine starts again, those of the last one: a request that is prepared meanwhile is
        for the engine to refuse, and not for its length.
        """
        return int(self.engine.status.ready.get("context", self._context))

    def is_named(self, name: str) -> bool:
        """Whether somebody who says that name wants this model: Ollama's users add ``:latest``."""
        return name in self.names or name.removesuffix(":latest") in self.names

    def expect_model(self, name: str) -> None:
        """
        Check what model somebody wants.

        Raises:
            ProblemError: it is another one; says where that is, if this server has it.
        """
        if not self.is_named(name):
            raise not_served(name, self.name, self.elsewhere)

    @contextmanager
    def remedied(self) -> Iterator[None]:
        """Name what bounds the context here, and what else can be asked; not the commands'."""
        try:
            yield
        except ModelError as exc:
            said = str(exc).replace("raise the context", f"raise {self.bound}")
            raise ModelError(said.replace(RAW, _RAW)) from exc

    def expect_prompt(self, ids: list[int]) -> None:
        """
        Check that a prompt has room, and the model its tokens.

        Raises:
            ModelError: it has not; says what to do.
        """
        with self.remedied():
            expect_prompt(ids, len(ids), self.context, self.config, self.prompts.tokenizer)

    async def prepared(
        self, count: int, until: float | None, work: Callable[..., T], *arguments: Any
    ) -> T:
        """
        Make tokens for so many requests, or whatever else takes its time before they are asked.

        Raises:
            PropolisError: there is no room for them, which is known before; or as `threaded`.
        """
        with self.engine.room(count):
            self._context = self.context  # the engine may end while this is done
            return await threaded(until, work, *arguments)

    def answer(
        self, request: Request, until: float | None = None, tools: ToolUse | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """As :meth:`Engine.answer`, where there are tools with its calls told apart."""
        answer = self.engine.answer(messages.added(request), until)
        seen = answer if self._watch is None else self._watch(request, answer)
        return seen if tools is None else with_calls(seen, tools, answer.end)

    def embedding(self, ids: list[int], until: float | None = None) -> AsyncGenerator[Told]:
        """One thing that is told, with the ``embedding`` of those tokens."""
        return self.engine.answer(messages.embedded(ids), until)

    def text(self, ids: Sequence[int]) -> str:
        """What tokens say that follow others."""
        return self.prompts.tokenizer.decode(ids, continues=True)


__all__ = ["Service"]
