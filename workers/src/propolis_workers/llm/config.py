"""The numbers that define a language model, whichever file and architecture they came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import DType
from propolis import dtypes
from propolis.errors import ConfigError
from propolis.errors import ModelError
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.llm.rope_scaling import LONGEST
from propolis_workers.llm.rope_scaling import PLAIN


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

MOST_LAYERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Rope:
    """
    How queries and keys are turned by their positions.

    Attributes:
        dim: elements of a head that are rotated.
        base: of the rotation frequencies.
        interleaved: whether pairs are neighbours, rather than halves.
        scaling: how the frequencies are scaled: ``rope_type`` and the keys that
            ``propolis_workers.llm.rope`` reads for it.
    """

    dim: int
    base: float = 10_000.0
    interleaved: bool = False
    scaling: Mapping[str, Any] = field(default_factory=lambda: PLAIN, hash=False, repr=False)

    def __str__(self) -> str:
        return f"{self.dim} elements with a base of {self.base:g}"


@dataclass(frozen=True, slots=True)
class Experts:
    """
    A mixture of feed-forward networks.

    Attributes:
        count: how many there are.
        used: how many each token is given to.
        width: elements inside one.
        shared_width: elements inside the one that all tokens pass besides; 0 for none.
        renormalize: whether the weights of a token's experts sum to 1.
        dense: leading layers that have an ordinary network instead.
        scale: of the experts' sum.
        score: of the router's logits, what experts are chosen by and weighted with: ``softmax``
            over all, or ``sigmoid``.
        groups: of experts, of which each token may choose from the best alone; 1 for no such rule.
        groups_used: how many groups a token may choose from.
        group_best: how many of a group's scores are added to the group's.
    """

    count: int
    used: int
    width: int
    shared_width: int = 0
    renormalize: bool = True
    dense: int = 0
    scale: float = 1.0
    score: str = "softmax"
    groups: int = 1
    groups_used: int = 1
    group_best: int = 1

    def __str__(self) -> str:
        """In words, for errors: all fields would be cut in the middle."""
        said = f"{self.used} of {self.count} for each token, {self.width} wide"
        if self.groups != 1:
            said += f", from {self.groups_used} of {self.groups} groups"
        return said


@dataclass(frozen=True, slots=True)
class Latent:
    """
    What keys and values are computed from (multi-head latent attention).

    Attributes:
        keys: numbers of a token that its keys and values are products of.
        queries: numbers of a token that its queries are products of; 0: of its whole width.
    """

    keys: int
    queries: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """
    The numbers of a decoder-only transformer.

    What an architecture does not have is neutral: a window of 0 is all keys, a cap of 0 is
    none.

    Attributes:
        architecture: its name in :mod:`propolis_workers.llm.models`.
        vocab_size: rows of the embedding.
        width: elements of the residual stream.
        ffn_width: elements inside the feed-forward network.
        layers: number of blocks.
        heads: query heads.
        kv_heads: key-value heads; divides ``heads``.
        head_dim: elements of a head of queries and keys.
        value_dim: elements of a head of values; those of ``head_dim`` when 0.
        norm_eps: of the norms.
        context_length: tokens the model was made for.
        ropes: the kinds of rotations; mostly one.
        rope_of: for each layer the index of its kind in ``ropes``, -1 for none; all have the
            first when empty.
        windows: for each layer the keys that a query sees, its own included; 0 for all; all have
            no window when empty.
        tied: whether the embedding is the output too where the file has no other.
        score_scale: of products of queries and keys; ``head_dim ** -0.5`` when 0.
        score_cap: of scores (soft).
        logit_cap: of logits (soft).
        logit_scale: of logits.
        embedding_scale: of embeddings.
        residual_scale: of what a layer adds.
        norm: ``rms`` or ``layer``.
        norm_offset: added to the weights of norms, where a file holds them less that.
        activation: of the feed-forward network, a key of ``llm.layers.ACTIVATIONS``.
        gated: whether that network has a gate.
        parallel: whether attention and feed-forward network read the same and are added at once.
        experts: None for an ordinary feed-forward network in every layer.
        latent: None for keys and values of the whole width.
        convolved: for each layer whether it has a short convolution in place of attention; no layer
            has when empty.
        conv_taps: tokens that such a convolution reads, its own included.
        pooling: how the states of a text's tokens become one vector, ``mean`` or ``last``; empty
            where the model is not made for that.
        kv_dtype: what the cache keeps keys and values in: whoever runs the model says so, no file.
        dtype: what activations are in, and weights that are no blocks: likewise.
    """

    architecture: str
    vocab_size: int
    width: int
    ffn_width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    ropes: tuple[Rope, ...]
    rope_of: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    value_dim: int = 0
    tied: bool = True
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    logit_scale: float = 1.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    norm: str = "rms"
    norm_offset: float = 0.0
    activation: str = "silu"
    gated: bool = True
    parallel: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    convolved: tuple[bool, ...] = ()
    conv_taps: int = 0
    pooling: str = ""
    kv_dtype: DType = dtypes.f32
    dtype: DType = dtypes.f32

    def __post_init__(self) -> None:
        sizes = "vocab_size", "width", "ffn_width", "layers", "heads", "kv_heads", "head_dim"
        scales = "score_scale", "score_cap", "logit_cap"
        factors = "logit_scale", "embedding_scale", "residual_scale"
        size = {field.name: getattr(self, field.name) for field in fields(self)}
        ropes, latent = self.ropes, self.latent
        # First: others may have been computed of these.
        self._expect({name: 0 < size[name] <= 1 << 24 for name in sizes})
        fits = {
            **{name: 0 <= size[name] < math.inf for name in (*scales, "norm_eps")},
            **{name: 0 < size[name] < math.inf for name in factors},
            "value_dim": 0 <= self.value_dim <= 1 << 24,
            "layers": self.layers <= MOST_LAYERS,
            "heads": self.heads % self.kv_heads == 0,
            "ropes": all(0 < r.dim <= self.head_dim and r.dim % 2 == 0 for r in ropes)
            and all(0 < rope.base < math.inf for rope in ropes),
            "context_length": 0 < self.context_length <= LONGEST,
            "rope_of": len(self.rope_of) in (0, self.layers)
            and all(-1 <= kind < len(ropes) for kind in self.rope_of),
            "windows": len(self.windows) in (0, self.layers)
            and all(0 <= window <= LONGEST for window in self.windows),
            "convolved": len(self.convolved) in (0, self.layers),
            "conv_taps": (1 if any(self.convolved) else 0) <= self.conv_taps <= 1 << 10,
            "experts": self.experts is None or _fit(self.experts),
            "latent": latent is None
            or (0 < latent.keys <= 1 << 24 and 0 <= latent.queries <= 1 << 24),
        }
        self._expect(fits)
        try:
            for rope in self.ropes:
                # At its longest, where dynamic's base is the largest.
                rope_frequencies(rope.dim, rope.base, rope.scaling, self.context_length)
        except ConfigError as exc:
            msg = f"the model's rope scaling cannot be computed: {exc}"
            raise ModelError(msg) from exc

    def _expect(self, fits: Mapping[str, object]) -> None:
        """Refuse what does not fit, by name."""
        wrong = [name for name, right in fits.items() if not right]
        if wrong:
            said = "; ".join(f"{name}: {self._told(name)}" for name in wrong)
            msg = f"the model's settings do not describe a transformer: {said}"
            raise ModelError(msg)

    def _told(self, name: str) -> str:
        """A number that does not fit, and what would where that is not plain."""
        value, rules = (
            getattr(self, name),
            {
                "layers": f"1 to {MOST_LAYERS}",
                "heads": f"a multiple of {self.kv_heads}, the heads of keys and values",
                "ropes": f"an even number up to {self.head_dim}, a head's size, and a base above 0",
                "context_length": f"1 to {LONGEST}",
            },
        )
        text = ", ".join(map(str, value)) if name == "ropes" else str(value)
        rule = rules.get(name, "") if name == "ropes" or text.isdigit() else ""
        return f"{text:.100}" + (f" (supported: {rule})" if rule else "")

    @property
    def values_dim(self) -> int:
        """Elements of a head of values."""
        return self.value_dim or self.head_dim

    @property
    def inner_width(self) -> int:
        """The most elements that a feed-forward network holds of one token at a time."""
        if self.experts is None:
            return self.ffn_width
        mixed = self.experts.used * self.experts.width + self.experts.shared_width
        return max(mixed, self.ffn_width if self.experts.dense else 0)

    def kept(self, layer: int) -> tuple[tuple[int, int], ...]:
        """What a cache holds of each token for a layer: (heads, elements) of each."""
        if self.convolved and self.convolved[layer]:
            return ((1, self.width),)
        return (self.kv_heads, self.head_dim), (self.kv_heads, self.values_dim)

    def kept_as(self, layer: int) -> DType:
        """What that is kept in: rows of a short convolution are numbers, not blocks of some."""
        numbers = self.kv_dtype.is_block and self.convolved and self.convolved[layer]
        return dtypes.f32 if numbers else self.kv_dtype

    def window(self, layer: int) -> int:
        """Keys that a query of a layer sees, its own included; 0 for all."""
        return self.windows[layer] if self.windows else 0

    def rope_kind(self, layer: int) -> int:
        """Which of ``ropes`` a layer has; -1 for none."""
        return self.rope_of[layer] if self.rope_of else 0

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward network is a mixture."""
        return self.experts is not None and layer >= self.experts.dense


def _fit(experts: Experts) -> bool:
    counts = (experts.count, experts.used, experts.width)
    return (
        all(0 < n <= 1 << 24 for n in counts)
        and 0 <= experts.shared_width <= 1 << 24
        and experts.used <= experts.count <= 1 << 16
        and experts.dense >= 0
        and 0 < experts.scale < math.inf
        and 0 < experts.groups_used <= experts.groups <= experts.count
        and experts.count % experts.groups == 0
        and 0 < experts.group_best <= experts.count // experts.groups
        and experts.used <= experts.groups_used * (experts.count // experts.groups)
    )


def alternating(layers: int, period: int, window: int) -> Iterator[int]:
    """
    Windows of layers of which the last in each ``period`` sees all keys.

    Args:
        layers: how many.
        period: of layers.
        window: of the others.
    """
    return (0 if layer % period == period - 1 else window for layer in range(layers))


__all__ = ["MOST_LAYERS", "Experts", "Latent", "ModelConfig", "Rope", "alternating"]
