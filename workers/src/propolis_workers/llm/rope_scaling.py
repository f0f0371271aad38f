"""
How a model's files say that its rotations are scaled for long contexts.

Both kinds of files are read into the words of Hugging Face, as :mod:`.rope` takes them:
``rope_type`` and the keys that its formula reads.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.layers import read_weight
from propolis_workers.llm.rope import ROPE_TYPES
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.settings import FileSettings


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.weights import GGUFFile

LONGEST: Final = 1 << 28  # tokens of any context
PLAIN: Final[Mapping[str, Any]] = MappingProxyType({"rope_type": "default"})
_TRAINED: Final = "original_max_position_embeddings"
_IN_GGUF: Final = ("none", "linear", "yarn", "longrope")


def rope_from_config(
    read: FileSettings, context: int, layers: str = ""
) -> tuple[float, Mapping[str, Any]]:
    """
    Base and scaling, from a ``config.json`` as transformers 4 or 5 wrote it.

    Args:
        read: the whole file.
        context: its ``max_position_embeddings``.
        layers: the kind of layers whose parameters are wanted, where each kind has its own.

    Raises:
        UnsupportedModelError: no formula here is for its type.
        ModelError: a value is of another type.
    """
    given = read.values.get("rope_scaling") or read.values.get("rope_parameters") or {}
    if isinstance(given, dict):
        given = given.get(layers, given)
    if not isinstance(given, dict):
        msg = f"{read.source}: rope_scaling is {str(given)[:60]!r}, not an object"
        raise ModelError(msg)
    inner = FileSettings(f"{read.source} rope_scaling", given, "language model")
    base = inner.number("rope_theta", read.number("rope_theta", 10_000.0))
    kind = given.get("rope_type") or given.get("type") or "default"
    # First configs of Phi 3 named longrope so; its factors tell it from YaRN.
    if kind == "su" or (kind == "yarn" and given.get("short_factor") is not None):
        kind = "longrope"
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        msg = f"{read.source}: rope scaling {kind!r:.60}; supported: {', '.join(ROPE_TYPES)}"
        raise UnsupportedModelError(msg)
    scaling = {key: given[key] for key in ROPE_TYPES[kind] if given.get(key) is not None}
    context = max(0, min(context, LONGEST))  # whoever exceeds that is refused for it
    if _TRAINED in ROPE_TYPES[kind]:
        # As transformers: dynamic is trained for max_position_embeddings, whatever else is
        # said; of the others, Phi-3's key beside rope_scaling is heard first.
        trained = inner.number(_TRAINED, context)
        trained = context if kind == "dynamic" else read.number(_TRAINED, trained)
        scaling[_TRAINED] = trained
        if kind in ("yarn", "longrope") and trained > 0:
            scaling.setdefault("factor", context / trained)
    return base, _frozen(kind, scaling)


def rope_from_gguf(read: FileSettings, file: GGUFFile, pairs: int) -> Mapping[str, Any]:
    """
    The scaling that a GGUF file's metadata names.

    Args:
        read: the metadata.
        file: has the tensors of longrope.
        pairs: that are rotated: elements of these tensors.

    Raises:
        UnsupportedModelError: no formula here is for its type.
        ModelError: a value or a tensor is missing, or of another type.
    """
    arch = read.text("general.architecture")
    key = f"{arch}.rope.scaling."
    # As llama.cpp: a factor without a type is linear; older files have another key for it.
    kind = read.values.get(f"{key}type", "linear")
    # Phi 3's converter writes longrope's tensors alone, and llama.cpp reads them whatever the type.
    if all(f"rope_factors_{which}.weight" in file.tensors for which in ("short", "long")):
        kind = "longrope"
    if kind not in _IN_GGUF:
        msg = f"{read.source}: rope scaling {kind!r:.60}; supported: {', '.join(_IN_GGUF)}"
        raise UnsupportedModelError(msg)
    factor = read.number(f"{key}factor", 0.0) or read.number(f"{arch}.rope.scale_linear", 0.0)
    factor = factor or 1.0
    trained = read.count(f"{key}original_context_length", 0)
    trained = trained or read.count(f"{arch}.context_length")
    if kind == "yarn":
        return _yarn_from_gguf(read, key, {"factor": factor, _TRAINED: trained})
    if kind == "longrope":
        # As llama.cpp: a factor divides the frequencies beside the tensors, and without
        # attn_factor the amplitude is 1 (transformers computes it from the factor).
        short, long = (
            tuple((factor * _vector(file, f"rope_factors_{which}.weight", pairs)).tolist())
            for which in ("short", "long")
        )
        scaling = {"short_factor": short, "long_factor": long, _TRAINED: trained}
        return _frozen(kind, scaling | {"attention_factor": _amplitude(read)})
    return PLAIN if kind == "none" or factor == 1 else _frozen(kind, {"factor": factor})


def _yarn_from_gguf(read: FileSettings, key: str, scaling: dict[str, Any]) -> Mapping[str, Any]:
    """
    YaRN, as the converter of llama.cpp writes it for a model of transformers.

    For the architecture llama, llama.cpp itself reads none of these keys: a model whose
    values are not the usual ones has other numbers there than in transformers, and here.
    """
    extrapolated = read.number(f"{key}yarn_ext_factor", 1.0)
    if extrapolated >= 0 and extrapolated != 1:  # negative is not given
        msg = f"{read.source}: {key}yarn_ext_factor is {extrapolated}; supported: 1"
        raise UnsupportedModelError(msg)
    for ours, theirs in (
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("attention_factor", "yarn_attn_factor"),
        ("mscale_all_dim", "yarn_log_multiplier"),  # with an mscale of 1
    ):
        value = read.number(f"{key}{theirs}", 0.0)
        if value:
            scaling[ours] = value
    return _frozen("yarn", {"mscale": 1.0} | scaling if "mscale_all_dim" in scaling else scaling)


def with_gguf_factors(
    read: FileSettings,
    file: GGUFFile,
    scaling: Mapping[str, Any],
    dim: int,
    base: float,
) -> Mapping[str, Any]:
    """
    The scaling with what else scales it in GGUF files alone.

    ``rope_freqs.weight`` divides the frequencies (so they hold what llama3 computes), and
    attn_factor multiplies the amplitude, whatever the type.  In Hugging Face's words that is
    longrope with one list for all lengths.

    Args:
        read: the metadata.
        file: has the tensor, or not.
        scaling: what the metadata names.
        dim: elements of a head that are rotated.
        base: of the rotation frequencies.

    Raises:
        ModelError: the tensor does not fit.
    """
    amplitude = _amplitude(read)
    tensor = "rope_freqs.weight" in file.tensors
    # As llama.cpp, which does not look for the tensor beside longrope's own.
    if scaling["rope_type"] == "longrope" or (amplitude == 1 and not tensor):
        return scaling
    frequencies, usual = rope_frequencies(dim, base, scaling)
    factors = rope_frequencies(dim, base)[0] / frequencies
    if tensor:
        factors *= _vector(file, "rope_freqs.weight", dim // 2)
    both = tuple(factors.tolist())
    words = {"short_factor": both, "long_factor": both, _TRAINED: LONGEST}
    return _frozen("longrope", words | {"attention_factor": amplitude * usual})


def extended(context: int, scaling: Mapping[str, Any]) -> int:
    """
    The tokens of a context that a model's scaling extends.

    Files of dynamic and YaRN models may give the trained length alone as the context, which
    these are there to exceed by their factor.
    """
    if scaling["rope_type"] not in ("dynamic", "yarn") or context <= 0:
        return context
    try:
        return max(context, int(min(scaling["factor"] * scaling[_TRAINED], LONGEST)))
    except (OverflowError, TypeError, ValueError):
        return context  # the scaling is refused for what it is


def _amplitude(read: FileSettings) -> float:
    """What a GGUF file multiplies cosines and sines with."""
    key = f"{read.text('general.architecture')}.rope.scaling.attn_factor"
    amplitude = read.number(key, 1.0)
    if not 0 < amplitude < math.inf:
        raise read.wrong(key, "not a finite number above 0")
    return amplitude


def _frozen(kind: str, scaling: Mapping[str, Any]) -> Mapping[str, Any]:
    lists = {key: tuple(value) for key, value in scaling.items() if isinstance(value, list)}
    return MappingProxyType({"rope_type": kind, **scaling, **lists})


def _vector(file: GGUFFile, name: str, width: int) -> np.ndarray:
    """The values of a small tensor, f64."""
    raw, dtype = read_weight(file, name, (width,))
    if dtype.is_block:
        msg = f"tensor {name} is {dtype}; supported: floats"
        raise ModelError(msg)
    values = raw.view(dtype.numpy).astype(np.float64)
    if not ((values > 0) & np.isfinite(values)).all():
        msg = f"tensor {name} holds factors that are not positive and finite"
        raise ModelError(msg)
    return values
