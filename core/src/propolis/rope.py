"""
The tables of rotary embeddings that ``ops.rope`` reads, with the scalings of long contexts.

Scalings go by the names and keys of Hugging Face's ``rope_parameters``; the formulas are
those of the papers that each function names.  All is computed in f64 and rounded once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping


def rope_tables(
    dim: int,
    positions: np.ndarray,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    The cosines and sines of every position, f32, (positions, dim / 2).

    Args:
        dim: elements of a head that are rotated, an even number.
        positions: of rank 1, usually ``np.arange(context)``.
        base: the base of the wavelengths (theta).
        scaling: None, or ``rope_type`` (default, linear, dynamic, yarn, llama3) and the
            keys that its formula needs.

    Raises:
        ConfigError: the type is unknown, or a key that it needs is missing.
    """
    frequencies, amplitude = rope_frequencies(dim, base, scaling)
    angles = np.asarray(positions, np.float64)[:, None] * frequencies
    cos, sin = amplitude * np.cos(angles), amplitude * np.sin(angles)
    return cos.astype(np.float32), sin.astype(np.float32)


def rope_frequencies(
    dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, float]:
    """
    The angle that each pair turns from one position to the next, and the tables' amplitude.

    Arguments and errors as for ``rope_tables``.
    """
    kind = "default" if scaling is None else str(scaling.get("rope_type", "default"))
    if kind not in _SCALINGS:
        msg = f"rope_type {kind!r} is unknown; supported: {', '.join(_SCALINGS)}"
        raise ConfigError(msg)
    try:
        return _SCALINGS[kind](dim, base, scaling or {})
    except KeyError as exc:
        msg = f"rope_type {kind!r} needs {exc.args[0]}; given: {', '.join(scaling or {})}"
        raise ConfigError(msg) from exc


Result = tuple[np.ndarray, float]


def _default(dim: int, base: float, _: Mapping[str, Any]) -> Result:
    """``base ** (-2 i / dim)`` (Su et al. 2021)."""
    return base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim), 1.0


def _linear(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """All frequencies divided by a factor: positions interpolated (Chen et al. 2023)."""
    return _default(dim, base, scaling)[0] / scaling["factor"], 1.0


def _dynamic(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """A larger base, the longer the sequence is (NTK-aware scaling, bloc97 2023)."""
    trained = scaling["original_max_position_embeddings"]
    length = max(scaling.get("seq_len", trained), trained)
    factor = scaling["factor"]
    stretch = factor * length / trained - (factor - 1)
    return _default(dim, base * stretch ** (dim / (dim - 2)), scaling)


def _yarn(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """Slow pairs interpolated, fast ones not, a ramp between (YaRN, Peng et al. 2023)."""
    factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """Which pair makes so many turns over the trained context."""
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.get("beta_fast") or 32), pair(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001  # no division by zero where all is one step
    ramp = np.clip((np.arange(dim // 2) - low) / width, 0, 1)
    fast = _default(dim, base, scaling)[0]
    return fast / factor * ramp + fast * (1 - ramp), _yarn_amplitude(factor, scaling)


def _yarn_amplitude(factor: float, scaling: Mapping[str, Any]) -> float:
    """The square root of the temperature of the scores, or what the model gives for it."""
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def amplitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    part, whole = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return amplitude(part) / amplitude(whole) if part and whole else amplitude(1.0)


def _llama3(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """Long waves divided by a factor, short ones kept, a blend between (Llama 3.1, 2024)."""
    frequencies, _ = _default(dim, base, scaling)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((waves - low) / (high - low), 0, 1)
    return frequencies / scaling["factor"] * (1 - kept) + frequencies * kept, 1.0


_SCALINGS: Final[dict[str, Callable[[int, float, Mapping[str, Any]], Result]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}

__all__ = ["rope_frequencies", "rope_tables"]
