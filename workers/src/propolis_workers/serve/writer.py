"""A language model in the process that computes: many answers, a token each at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis.config import Config
from propolis.errors import DeviceLostError
from propolis.errors import PropolisError
from propolis.runtime import Runtime
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Drawn
from propolis_workers.llm.session import LLM
from propolis_workers.serve import messages
from propolis_workers.serve.resources import Resources


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    Told = dict[str, Any]


class Writer:
    """Answers requests for text; see :class:`propolis_workers.serve.child.Worker`."""

    def __init__(self) -> None:
        self._engine: BatchEngine
        self._resources: Resources

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
        kept = told.pop("kv_type", "f32")
        llm = LLM.load(runtime=runtime, progress=progress, tokens=options["context"], kv_type=kept)
        self._engine = engine = BatchEngine(llm, **told)
        device = llm.model.device
        self._resources = Resources(device)
        return {
            "device": device.id,
            "name": device.properties.name,
            "context": engine.capacity,
            "blocks": engine.blocks.count,
            "window_blocks": 0 if (windows := engine.blocks.windows) is None else windows.count,
        }

    @property
    def busy(self) -> bool:
        """Whether there is an answer to go on with."""
        return self._engine.busy

    def add(self, message: Mapping[str, Any]) -> None:
        """
        Take a request.

        Raises:
            PropolisError: it cannot be answered.
        """
        self._engine.add(message["key"], messages.request(message))

    def cancel(self, key: int) -> None:
        """Drop an answer; its blocks are free."""
        self._engine.cancel(key)

    def step(self, tell: Callable[[list[Told]], None], hear: Callable[[], None]) -> None:
        """Draw a token of each answer."""
        del hear  # a step is short
        try:
            told = self._engine.step()
        except DeviceLostError:
            raise  # only a new process can use it again
        except PropolisError as exc:
            told = [Drawn(key, None, error=exc) for key in self._engine.abandon()]
        tell([messages.drawn(one) for one in told])

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
