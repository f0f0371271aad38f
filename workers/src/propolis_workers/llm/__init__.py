"""The LLM worker: load a model, answer a prompt, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from propolis_workers.llm.answer import Finish
    from propolis_workers.llm.generation import Generation
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.session import LLM

_LAZY = {
    "LLM": "propolis_workers.llm.session",
    "Finish": "propolis_workers.llm.answer",
    "Generation": "propolis_workers.llm.generation",
    "SamplingParams": "propolis_workers.llm.sampling",
}


def __getattr__(name: str) -> Any:
    # The command line imports this package to list its commands: nothing heavy here.
    if name not in _LAZY:
        msg = f"module 'propolis_workers.llm' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = ["LLM", "Finish", "Generation", "SamplingParams"]
