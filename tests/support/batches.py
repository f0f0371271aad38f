"""What tests ask of a batch engine."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from propolis_workers.llm.batch.engine import BatchEngine
    from propolis_workers.llm.batch.engine import Request


def answers(engine: BatchEngine, requests: list[Request]) -> list[list[int]]:
    """The tokens of the answers of all, in order."""
    for key, wanted in enumerate(requests):
        engine.add(key, wanted)
    finished = {}
    while engine.busy:
        finished |= {one.key: one.finish.ids for one in engine.step() if one.finish is not None}
    return [finished[key] for key in range(len(requests))]
