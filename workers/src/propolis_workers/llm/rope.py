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
from typing import TypeAlias

import numpy as np

from propolis.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

Result = tuple[np.ndarray, float]
Formula: TypeAlias = "Callable[[int, float, Mapping[str, Any]], Result]"


def rope_tables(
    dim: int,
    positions: np.ndarray,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    seq_len: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    The cosines and sines of every position, f32, (positions, dim / 2).

    Args:
        dim: elements of a head that are rotated, an even number.
        positions: of rank 1, usually ``np.arange(context)``.
        base: the base of the wavelengths (theta).
        scaling: None, or ``rope_type`` (a key of ``ROPE_TYPES``) and the keys that its formula
            reads; one that is None counts as not given.
        seq_len: tokens that the sequence may have, on which dynamic and longrope depend; None is
            no more than the model was trained for.

    Raises:
        ConfigError: the type is unknown, a key that it needs is missing, or a value is none that
            angles can be computed from.
    """
    frequencies, amplitude = rope_frequencies(dim, base, scaling, seq_len)
    angles = np.asarray(positions, np.float64)[:, None] * frequencies
    cos, sin = amplitude * np.cos(angles), amplitude * np.sin(angles)
    return cos.astype(np.float32), sin.astype(np.float32)


def rope_frequencies(
    dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    seq_len: int | None = None,
) -> tuple[np.ndarray, float]:
    """
    The angle that each pair turns from one position to the next, and the tables' amplitude.

    Arguments and errors as for ``rope_tables``.
    """
    kind = (scaling or {}).get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _SCALINGS:
        msg = f"rope_type {kind!r:.60} is unknown; supported: {', '.join(_SCALINGS)}"
        raise ConfigError(msg)
    formula, keys = _SCALINGS[kind]
    given = {key: scaling[key] for key in keys if scaling.get(key) is not None} if scaling else {}
    for key, value in given.items():
        wanted = _wanted(key, value, dim // 2)
        if wanted:
            msg = f"rope_type {kind!r}: {key} is {value!r:.60}; supported: {wanted}"
            raise ConfigError(msg)
    try:
        with np.errstate(all="ignore"):  # what overflows is found below
            frequencies, amplitude = formula(dim, base, given | {"seq_len": seq_len or 0})
    except KeyError as exc:
        msg = f"rope_type {kind!r} needs {exc.args[0]}; given: {', '.join(given) or 'nothing'}"
        raise ConfigError(msg) from exc
    except (ArithmeticError, ValueError):
        frequencies, amplitude = np.zeros(1), 0.0
    angles = np.append(frequencies, amplitude)
    if not ((angles > 0) & np.isfinite(angles)).all():
        values = {"dim": dim, "base": base} | given
        shown = ", ".join(f"{key} {value!r:.40}" for key, value in values.items())
        msg = f"rope_type {kind!r} gives angles that are not positive and finite, with {shown}"
        raise ConfigError(msg)
    return frequencies, amplitude


def _wanted(key: str, value: Any, pairs: int) -> str:
    """What a key's value must be, where this one is not."""
    if key in _PER_PAIR:
        fits = isinstance(value, (list, tuple)) and len(value) == pairs
        fits = fits and all(_is_number(x) and x > 0 for x in value)
        wanted = f"{pairs} finite numbers above 0, one for each pair"
    elif key == "truncate":
        fits, wanted = isinstance(value, bool), "true or false"
    elif key in _ZERO_IS_NONE:
        fits, wanted = _is_number(value) and value >= 0, "a finite number from 0"
    else:
        fits, wanted = _is_number(value) and value > 0, "a finite number above 0"
    return "" if fits else wanted


def _is_number(value: Any) -> bool:
    """Whether it is one, and finite; compared, since JSON has integers beyond all floats."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -_LARGEST <= value <= _LARGEST


_LARGEST: Final = float(np.finfo(np.float64).max)


def _default(dim: int, base: float, _: Mapping[str, Any]) -> Result:
    """``base ** (-2 i / dim)`` (Su et al. 2021)."""
    return base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim), 1.0


def _linear(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """All frequencies divided by a factor: positions interpolated (Chen et al. 2023)."""
    return _default(dim, base, scaling)[0] / scaling["factor"], 1.0


def _dynamic(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """A larger base, the longer the sequence is (NTK-aware scaling, bloc97 2023)."""
    factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]
    length = max(scaling["seq_len"], trained)
    stretch = factor * length / trained - (factor - 1)
    return _default(dim, base * stretch ** (dim / (dim - 2)), scaling)


def _yarn(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """Slow pairs interpolated, fast ones not, a ramp between (YaRN, Peng et al. 2023)."""
    factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """Which pair makes so many turns over the trained context."""
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    many, few = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
    if few > many:
        msg = f"rope_type 'yarn': beta_slow is {few}; supported: no more than beta_fast {many}"
        raise ConfigError(msg)
    low, high = pair(many), pair(few)
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
    if low >= high:
        msg = f"rope_type 'llama3': low_freq_factor is {low}; supported: below {high}, the high one"
        raise ConfigError(msg)
    waves = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((waves - low) / (high - low), 0, 1)
    return frequencies / scaling["factor"] * (1 - kept) + frequencies * kept, 1.0


def _longrope(dim: int, base: float, scaling: Mapping[str, Any]) -> Result:
    """Each pair divided by a factor of its own, found by search (LongRoPE, Ding et al. 2024)."""
    short, long = scaling["short_factor"], scaling["long_factor"]
    trained = scaling["original_max_position_embeddings"]
    factors = np.array(long if scaling["seq_len"] > trained else short, np.float64)
    amplitude = scaling.get("attention_factor")
    if amplitude is None:
        longer = math.log(max(scaling["factor"], 1))
        amplitude = math.sqrt(1 + longer / math.log(trained)) if longer else 1.0
    return _default(dim, base, scaling)[0] / factors, float(amplitude)


_TRAINED: Final = "original_max_position_embeddings"

# Each rope_type's formula, and the keys that it reads.
_SCALINGS: Final[dict[str, tuple[Formula, tuple[str, ...]]]] = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_dynamic, ("factor", _TRAINED)),
    "yarn": (
        _yarn,
        (
            *("factor", _TRAINED, "beta_fast", "beta_slow", "truncate"),
            *("attention_factor", "mscale", "mscale_all_dim"),
        ),
    ),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", _TRAINED)),
    "longrope": (
        _longrope,
        ("short_factor", "long_factor", "factor", _TRAINED, "attention_factor"),
    ),
}
ROPE_TYPES: Final = {kind: keys for kind, (_, keys) in _SCALINGS.items()}
_PER_PAIR: Final = ("short_factor", "long_factor")
_ZERO_IS_NONE: Final = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")

__all__ = ["ROPE_TYPES", "rope_frequencies", "rope_tables"]
