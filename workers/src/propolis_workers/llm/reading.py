"""What models of most architectures say of themselves alike, in files of either kind."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm.config import MOST_LAYERS
from propolis_workers.llm.config import Rope
from propolis_workers.llm.microscaled import METHOD as MICROSCALED
from propolis_workers.llm.microscaled import Microscaled
from propolis_workers.llm.rope_scaling import extended
from propolis_workers.llm.rope_scaling import rope_from_config
from propolis_workers.llm.rope_scaling import rope_from_gguf
from propolis_workers.llm.rope_scaling import with_gguf_factors
from propolis_workers.llm.scaled import Scaled
from propolis_workers.llm.scaled import block_of
from propolis_workers.settings import FileSettings


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis_workers.weights import GGUFFile
    from propolis_workers.weights import SafetensorsFolder
    from propolis_workers.weights import Weights

_MODEL: Final = "language model"  # for messages
_LAYER: Final = re.compile(r"(?:(?:model\.|language_model\.){1,2}layers|blk)\.(\d{1,6})\.")
_KINDS: Final = ("full_attention", "sliding_attention")


@contextmanager
def about(source: object) -> Iterator[None]:
    """Let what is wrong with a model's settings say whose they are, where it does not."""
    try:
        yield
    except ModelError as exc:
        if str(source) in str(exc):
            raise
        msg = f"{source}: {exc}"
        raise type(exc)(msg) from exc


class ModelSettings(FileSettings):
    """What a file says of a language model."""

    def __init__(self, source: str, values: Mapping[str, Any], names: Iterable[str]) -> None:
        super().__init__(source, values, _MODEL)
        layers = (_LAYER.match(name) for name in names)
        self._stored = max((int(match[1]) + 1 for match in layers if match), default=0)

    def layers(self, key: str) -> int:
        """
        The number of layers.

        Raises:
            ModelError: it is missing, or none that a model has; or the weights have more: whatever
                the model says would be nonsense.
        """
        found = self.count(key)
        if not 0 < found <= MOST_LAYERS:
            raise self.wrong(key, f"supported: 1 to {MOST_LAYERS}")
        if found + self._beside() < self._stored:
            raise self.wrong(key, f"and the weights have {self._stored}: one is of another model")
        return found

    def _beside(self) -> int:
        """Layers that the weights may have and the number leaves out."""
        return 0


class GGUFSettings(ModelSettings):
    """
    The metadata of a GGUF file; most keys begin with the architecture's name.

    Attributes:
        file: the file.
        architecture: its ``general.architecture``.
    """

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file.path.name, file.metadata, file.tensors)
        self.file = file
        self.architecture = self.text("general.architecture")

    def own(self, key: str) -> str:
        """The whole of a key of the architecture's."""
        return f"{self.architecture}.{key}"

    def own_count(self, key: str, default: int | None = None) -> int:
        """A whole number of the architecture's."""
        return self.count(self.own(key), default)

    def own_number(self, key: str, default: float | None = None) -> float:
        """A number of the architecture's."""
        return self.number(self.own(key), default)

    def own_layers(self) -> int:
        """The number of layers, without those that guess further tokens."""
        key = self.own("block_count")
        found = self.layers(key) - self.own_count("nextn_predict_layers", 0)
        if not 0 < found <= MOST_LAYERS:
            raise self.wrong(key, f"with more layers that guess; supported: 1 to {MOST_LAYERS}")
        return found

    def own_shared(self, key: str, default: int) -> int:
        """A whole number of the architecture's, which may be given for each layer alike."""
        found = self.values.get(self.own(key))
        if isinstance(found, list) and len(set(map(str, found))) == 1 and type(found[0]) is int:
            return found[0]
        return self.own_count(key, default)

    def own_counts(self, key: str) -> list[int]:
        """
        Whole numbers of the architecture's, one for each layer.

        Raises:
            ModelError: there are none, or another number of them.
        """
        found, layers = self.values.get(self.own(key)), self.own_layers()
        if not isinstance(found, list) or not all(type(one) is int for one in found):
            raise self.wrong(self.own(key), "not a list of whole numbers")
        if len(found) != layers:
            raise self.wrong(self.own(key), f"of {len(found)} layers; there are {layers}")
        return found

    def usual(
        self, *, interleaved: bool = False, layer_norm: bool = False, kv_heads: int | None = None
    ) -> dict[str, Any]:
        """
        The arguments of a ``ModelConfig`` that all architectures have.

        Args:
            interleaved: whether such files hold q and k so that rope pairs neighbours.
            layer_norm: whether the norms are layer norms.
            kv_heads: where the file has no one number of them.

        Raises:
            UnsupportedModelError: no formula here is for the rope scaling.
            ModelError: a number is missing or of another type.
        """
        heads = self.own_count("attention.head_count")
        width = self.own_count("embedding_length")
        head_dim = self.own_count("attention.key_length", width // max(heads, 1))
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            msg = f"{self.source}: tensor token_embd.weight (vocabulary x width) is missing; "
            msg += "get the file again"
            raise ModelError(msg)
        context = self.own_count("context_length")
        epsilon = f"attention.layer_norm_{'' if layer_norm else 'rms_'}epsilon"
        rope = self._rope(self.own_count("rope.dimension_count", head_dim), interleaved=interleaved)
        return {
            "vocab_size": embedding.shape[0],
            "width": width,
            "ffn_width": self.own_count("feed_forward_length"),
            "layers": self.own_layers(),
            "heads": heads,
            "kv_heads": kv_heads or self.own_shared("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "value_dim": self.own_count("attention.value_length", width // max(heads, 1)),
            "norm_eps": self.own_number(epsilon),
            "context_length": extended(context, rope.scaling),
            "ropes": (rope,),
        }

    def windows(self) -> tuple[int, ...]:
        """Keys that queries see, alike in all layers."""
        return (self.own_count("attention.sliding_window", 0),) * self.layers(
            self.own("block_count")
        )

    def _rope(self, dim: int, *, interleaved: bool) -> Rope:
        base = self.own_number("rope.freq_base", 10_000.0)
        scaling = rope_from_gguf(self, self.file, dim // 2)
        scaling = with_gguf_factors(self, self.file, scaling, dim, base)
        return Rope(dim, base, interleaved, scaling)


class FolderSettings(ModelSettings):
    """A Hugging Face ``config.json``."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        config = folder.config
        if not config:
            msg = f"{folder.path}: config.json is missing or empty; get the whole model again"
            raise ModelError(msg)
        text = config.get("text_config")
        if isinstance(text, dict):  # of a model of texts and images: its language model
            shared = ("model_type", "quantization_config", "tie_word_embeddings")
            config = {**{key: config[key] for key in shared if key in config}, **text}
        super().__init__("config.json", config, folder.tensors)

    def _beside(self) -> int:
        """Those that guess further tokens, which come behind."""
        guess = self.values.get("num_nextn_predict_layers")
        return guess if isinstance(guess, int) else 0

    def complete(self, **defaults: Any) -> None:
        """
        Give settings to keys that the file leaves to the architecture, as transformers does.

        A key that is there and null is left: of some it means that there is none.
        """
        self.values = {**defaults, **self.values}

    def usual(
        self,
        *,
        interleaved: bool = False,
        epsilon: str = "rms_norm_eps",
        epsilon_default: float | None = None,
        activations: tuple[str, ...] = ("silu",),
        activation_key: str = "hidden_act",
        head_dim: int = 0,
        ffn_width: int | None = None,
        context: int | None = None,
        rotary_share: float = 1.0,
        kind: str = "",
        tied: bool = False,
    ) -> dict[str, Any]:
        """
        The arguments of a ``ModelConfig`` that all architectures have.

        Args:
            interleaved: whether rope pairs neighbours.
            epsilon: the key of the norms' epsilon.
            epsilon_default: where the file does not say; None for no default.
            activations: that the architecture's ``hidden_act`` may name.
            activation_key: the key of the activation's name.
            ffn_width: where the file does not say; None for no default.
            context: tokens the model was made for, likewise.
            head_dim: where the file does not say; 0 for the heads' share of the width.
            rotary_share: of a head, that is turned where the file does not say.
            kind: of layers whose rotations are meant, where each kind has its own.
            tied: whether the embedding is the output where the file does not say.

        Raises:
            UnsupportedModelError: no worker here runs its quantisation, its activation or its
                rope scaling.
            ModelError: a number is missing or of another type.
        """
        self.quantised()  # refuses others
        for key in ("hidden_activation", activation_key):
            found = self.values.get(key)
            if found is not None and found not in activations:
                msg = f"config.json: {key} {found!r:.40}; supported: {', '.join(activations)}"
                raise UnsupportedModelError(msg)
        heads = self.count("num_attention_heads")
        width = self.count("hidden_size")
        head_dim = self.count("head_dim", head_dim or width // max(heads, 1))
        length = self.count("max_position_embeddings", context)
        rope = self.rope(head_dim, length, interleaved=interleaved, share=rotary_share, kind=kind)
        return {
            "vocab_size": self.count("vocab_size"),
            "width": width,
            "ffn_width": self.count("intermediate_size", ffn_width),
            "layers": self.layers("num_hidden_layers"),
            "heads": heads,
            "kv_heads": self.count("num_key_value_heads", heads),
            "head_dim": head_dim,
            "norm_eps": self.number(epsilon, epsilon_default),
            "context_length": extended(length, rope.scaling),
            "ropes": (rope,),
            "tied": self.flag("tie_word_embeddings", tied),
        }

    def rope(
        self,
        head_dim: int,
        context: int,
        *,
        interleaved: bool = False,
        share: float = 1.0,
        kind: str = "",
    ) -> Rope:
        """
        How queries and keys are turned.

        Args:
            head_dim: elements of a head, of which ``partial_rotary_factor`` may be a share.
            context: the model's ``max_position_embeddings``.
            interleaved: whether pairs are neighbours.
            share: of a head, where the file does not say.
            kind: of layers (``full_attention``), where each kind has parameters of its own.
        """
        base, scaling = rope_from_config(self, context, kind)
        given = self.values.get("rope_parameters")
        inner = FileSettings(self.source, given if isinstance(given, dict) else {}, _MODEL)
        share = self.number("partial_rotary_factor", inner.number("partial_rotary_factor", share))
        if not 0 < share <= 1:
            raise self.wrong("partial_rotary_factor", "which is no share of a head")
        dim = head_dim if share == 1 else int(min(head_dim, 1 << 24) * share)
        return Rope(dim, base, interleaved, scaling)

    def refuse_dense_layers(self) -> None:
        """
        Refuse a mixture some of whose layers are none.

        Raises:
            UnsupportedModelError: it is one.
        """
        for key, only in (("decoder_sparse_step", 1), ("mlp_only_layers", [])):
            found = self.values.get(key)
            if found is not None and found != only:
                msg = f"config.json: {key} is {str(found)[:60]!r}; supported: {only}"
                raise UnsupportedModelError(msg)

    def windows(self) -> tuple[int, ...]:
        """
        Keys that queries of each layer see, by ``layer_types``, or alike in all layers.

        Raises:
            ModelError: ``layer_types`` is no list of as many texts as there are layers.
        """
        layers, window = self.layers("num_hidden_layers"), self.count("sliding_window", 0)
        kinds = self.values.get("layer_types")
        if kinds is None:
            return (window,) * layers
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise self.wrong("layer_types", "not a list of texts")
        if len(kinds) != layers:
            raise self.wrong("layer_types", f"of {len(kinds)} layers; there are {layers}")
        other = next((kind for kind in kinds if kind not in _KINDS), None)
        if other is not None:
            msg = f"config.json: layer_types has {other!r:.40}; supported: {', '.join(_KINDS)}"
            raise UnsupportedModelError(msg)
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)

    def late_windows(self) -> tuple[int, ...]:
        """As :meth:`windows`, of the layers from ``max_window_layers`` on, and where it is used."""
        if not self.flag("use_sliding_window", False):
            return ()
        windows = self.windows()
        if self.values.get("layer_types") is not None:
            return windows
        first = self.count("max_window_layers", 0)
        return tuple(window * (layer >= first) for layer, window in enumerate(windows))

    def quantised(self) -> Callable[[Weights], Weights] | None:
        """
        What reads its weights; None where they are plain.

        Raises:
            UnsupportedModelError: they are quantised by a method that is not read here.
        """
        said = self.values.get("quantization_config")
        if said is None:
            return None
        # Some methods keep the tensors' names and shapes, but not what the numbers mean.
        said = said if isinstance(said, dict) else {}
        if said.get("quant_method") == MICROSCALED:
            return Microscaled
        return partial(Scaled, block=block_of(said))


__all__ = ["FolderSettings", "GGUFSettings"]
