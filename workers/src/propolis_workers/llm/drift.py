"""
Run a model with its calls watched: which op, in which layer, is off, and by how much.

The steps run as they are, not as a captured graph: a replay looks nothing up, so nothing
could be watched.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from propolis_conformance.drift import Drift
    from propolis_workers.llm.network.decoder import Decoder
    from propolis_workers.llm.session import LLM


def run(llm: LLM, ids: Sequence[int], drift: Drift, *, tokens: int) -> list[int]:
    """
    Append a prompt and the likeliest tokens, under the eyes of ``drift``.

    Args:
        llm: the model.
        ids: the prompt.
        drift: judges the calls.
        tokens: how many to draw at most; each after the first is a step of decoding.

    Returns:
        The tokens drawn; the last ends the text, or is the last that was asked for, or logits
        after it were NaN, of which nothing can be drawn.

    Raises:
        ModelError: prompt and tokens do not fit into the model's context.
    """
    engine = llm.engine(min(len(ids) + tokens, llm.config.context_length))
    drawn: list[int] = []
    with labelled(llm.model, drift), drift.watching():
        logits = engine.prefill(ids)
        while not np.isnan(logits).any():
            drawn.append(int(np.argmax(logits[: llm.tokenizer.vocab_size])))
            if len(drawn) >= tokens or drawn[-1] in llm.tokenizer.eos_ids:
                break
            logits = engine.prefill(drawn[-1:])
    return drawn


@contextmanager
def labelled(model: Decoder, drift: Drift) -> Iterator[None]:
    """
    Let the model say where it is, inside the ``with`` block.

    Its parts are wrapped for that long, so that a model which nobody watches does nothing
    more than before.
    """
    plain = model.embedding, model.blocks, model.norm, model.output
    inside: Any = model
    inside.embedding = _Labelled(model.embedding, "embedding", drift)
    inside.blocks = [_Labelled(block, str(i), drift) for i, block in enumerate(model.blocks)]
    inside.norm = _Labelled(model.norm, "norm", drift)
    inside.output = _Labelled(model.output, "output", drift)
    try:
        yield
    finally:
        model.embedding, model.blocks, model.norm, model.output = plain


class _Labelled:
    """A part of a model that says its name when it is run."""

    def __init__(self, part: Any, label: str, drift: Drift) -> None:
        self.part = part
        self.label = label
        self.drift = drift

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._inside():
            return self.part(*args, **kwargs)

    def of_sum(self, *args: Any) -> Any:
        """As a norm's."""
        with self._inside():
            return self.part.of_sum(*args)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.drift.layer = self.label
        try:
            yield
        finally:
            self.drift.layer = ""


__all__ = ["labelled", "run"]
