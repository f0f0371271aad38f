"""A language model in the process that computes: many answers, a token each at every step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from propolis.config import Config
from propolis.errors import DeviceLostError
from propolis.errors import PropolisError
from propolis.runtime import Runtime
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Drawn
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.embedding import Embedder
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.session import LLM
from propolis_workers.serve import messages
from propolis_workers.serve.resources import Resources


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Generator
    from collections.abc import Mapping

    import numpy as np

    from propolis_workers.llm.answer import Finish
    from propolis_workers.llm.network.decoder import Decoder

    Reading = Generator[None, None, np.ndarray]
    Told = dict[str, Any]


class Writer:
    """Answers requests for text; see :class:`propolis_workers.serve.child.Worker`."""

    def __init__(self) -> None:
        self._engine: BatchEngine
        self._model: Decoder
        self._resources: Resources
        self._budget = CHUNK
        self._embedder: Embedder | None = None
        self._texts: dict[int, list[int]] = {}
        self._reading: tuple[int, float, Reading] | None = None

    def load(
        self,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[int, int], None],
    ) -> Told:
        """
        Load the model.

        Raises:
            PropolisError: it cannot be; says why.
        """
        runtime = Runtime.start(Config(**config))
        told = dict(options)
        types = {name: told.pop(name, "auto") for name in ("kv_type", "dtype")}
        llm = LLM.load(runtime=runtime, progress=progress, tokens=options["context"], **types)
        self._engine = engine = BatchEngine(llm, **told)
        self._model = llm.model
        self._budget = told.get("budget") or CHUNK
        device = llm.model.device
        self._resources = Resources(device)
        return {
            "device": device.id,
            "name": device.properties.name,
            "dtype": llm.config.dtype.name,
            "kv_type": llm.config.kv_dtype.name,
            "context": engine.capacity,
            "blocks": engine.blocks.count,
            "window_blocks": 0 if (windows := engine.blocks.windows) is None else windows.count,
        }

    def warm(self) -> None:
        """
        Draw two tokens for nobody.

        What the first step compiles, maps and allocates would else be the first client's to wait
        for, who was told that the model is ready; and what breaks, breaks before anybody asks.

        Raises:
            PropolisError: a step fails, and again.
        """
        engine = self._engine
        # Its blocks are not whole, and so are not kept.
        tokens = min(4, engine.capacity - 2)
        if tokens < 1:
            return
        params = SamplingParams(temperature=0.0)
        engine.add(None, Request(prompt=[0] * tokens, params=params, max_tokens=2))
        while engine.busy:  # what is wrong with this prompt alone is nobody's
            engine.step()

    @property
    def busy(self) -> bool:
        """Whether there is an answer to go on with."""
        return self._engine.busy or bool(self._texts)

    def add(self, message: Mapping[str, Any]) -> None:
        """
        Take a request.

        Raises:
            PropolisError: it cannot be answered.
        """
        if "embed" in message:
            if self._embedder is None:
                self._embedder = Embedder(self._model)
            self._texts[message["key"]] = message["embed"]
            return
        self._engine.add(message["key"], messages.request(message))

    def cancel(self, key: int) -> Finish | None:
        """Drop an answer; its blocks are free.  How it went."""
        self._texts.pop(key, None)
        return self._engine.cancel(key)

    def step(self, tell: Callable[[list[Told]], None], hear: Callable[[], None]) -> None:
        """Draw a token of each answer."""
        del hear  # a step is short
        if self._texts:
            tell(self._read())
        if not self._engine.busy:
            return
        try:
            told = self._engine.step()
        except DeviceLostError:
            raise  # only a new process can use it again
        except PropolisError as exc:
            told = [Drawn(key, None, error=exc) for key in self._engine.abandon()]
        tell([messages.drawn(one) for one in told])

    def _read(self) -> list[Told]:
        """A part of the text that came first; its embedding, where that was the last part."""
        key = next(iter(self._texts))
        if self._reading is None or self._reading[0] != key:
            steps = cast("Embedder", self._embedder).steps(self._texts[key], step=self._budget)
            self._reading = key, time.perf_counter(), steps
        _, started, steps = self._reading
        try:
            next(steps)
        except StopIteration as end:
            self._forget(key)
            return [messages.vector(key, end.value.tolist(), time.perf_counter() - started)]
        except DeviceLostError:
            raise
        except PropolisError as exc:
            self._forget(key)
            return [messages.failed(key, exc)]
        return []

    def _forget(self, key: int) -> None:
        del self._texts[key]
        self._reading = None

    def state(self) -> Told:
        """What is computed and waits, and how the device is."""
        engine = self._engine
        windows = engine.blocks.windows
        return {
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "preempted": engine.scheduler.preempted,
            "guessed": engine.guessed,
            "guessed_right": engine.taken,
            "blocks_taken": engine.blocks.taken,
            "blocks_kept": engine.blocks.kept,
            "window_blocks_taken": 0 if windows is None else windows.taken,
            "window_blocks_kept": 0 if windows is None else windows.kept,
            **self._resources.told(at_once=not engine.busy),
        }


__all__ = ["Writer"]
