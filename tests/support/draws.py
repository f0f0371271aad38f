"""Calls of the op ``draw``, and what is cut in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from propolis import Device
from propolis import Tensor
from propolis import ops


def settings(
    rng: np.random.Generator,
    rows: int,
    *,
    top_k: tuple[int, ...] = (),
    top_p: tuple[float, ...] = (),
    min_p: tuple[float, ...] = (),
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Keys, temperatures and cuts of each row, of those that are named."""
    keys = rng.integers(-(1 << 63), 1 << 63, rows, np.int64)
    temperatures = rng.choice([0.0, 0.3, 1.0, 2.0], rows).astype(np.float32)
    cuts = {"top_k": (top_k, np.int32), "top_p": (top_p, np.float32), "min_p": (min_p, np.float32)}
    given = {name: rng.choice(of, rows).astype(kind) for name, (of, kind) in cuts.items() if of}
    return keys, temperatures, given


def drawn_on(
    device: Device,
    logits: np.ndarray,
    keys: np.ndarray,
    temperatures: np.ndarray,
    cuts: dict[str, np.ndarray],
    k: int,
) -> np.ndarray:
    """What is drawn there."""
    given = [Tensor.from_numpy(one, device) for one in (logits, keys, temperatures)]
    named = {name: Tensor.from_numpy(one, device) for name, one in cuts.items()}
    return ops.draw(*given, k=k, **named).numpy()


CUTS: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 0),
    "the likeliest of all": ({}, 40),
    "more than are looked at first": ({"top_k": (5, 300, 2000)}, 0),
    "each its own": ({"top_k": (0, 1, 40, 256)}, 0),
    "by mass": ({"top_p": (1.0, 0.95, 0.5, 0.0)}, 0),
    "by mass of many": ({"top_p": (0.99, 0.9, 0.0), "top_k": (0, 1500)}, 0),
    "by chance": ({"min_p": (0.0, 0.05, 0.5, 1.0)}, 0),
    "by all": ({"top_k": (0, 40), "top_p": (1.0, 0.9), "min_p": (0.0, 0.1)}, 300),
}
