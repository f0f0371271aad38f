"""Prompts to judge a model by, and how many of them its images obey."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

import numpy as np
from captions import Claims
from captions import random_claims
from captions import say
from scenes import HELD_OUT_PAIRS
from scenes import held_out_scene
from scenes import training_scene


if TYPE_CHECKING:
    from collections.abc import Sequence

    from checker import Verdict

KINDS: Final = ("new couple", "new pair", "known")
FIGURES: Final = (
    "obeyed",
    "everything",
    "count",
    "colour",
    "shape",
    "size",
    "position",
    "background",
)


def prompts_of(kind: str, count: int, seed: int) -> list[tuple[str, Claims]]:
    """
    Prompts that say every colour, shape and position.

    Kinds: `new pair` has a thing of a colour and shape that training never joined, `new couple`
    two things known by themselves but never seen together, `known` is of training's kind.
    """
    rng = np.random.default_rng(seed)
    chosen: list[tuple[str, Claims]] = []
    while len(chosen) < count:
        scene = training_scene(rng) if kind == "known" else held_out_scene(rng)
        new_pair = any((t.colour, t.shape) in HELD_OUT_PAIRS for t in scene.things)
        if kind == "known" or new_pair == (kind == "new pair"):
            claims = random_claims(scene, rng, full=True)
            chosen.append((say(claims, rng), claims))
    return chosen


def percentages(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Per cent of the images that obey, in all and by each claim."""
    return {
        name: round(100 * sum(getattr(v, name) for v in verdicts) / len(verdicts), 1)
        for name in FIGURES
    }
