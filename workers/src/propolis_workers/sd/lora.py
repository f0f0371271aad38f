"""
LoRA files: small changes of a model's weights, ``W + up @ down * alpha / rank * strength``.

Both layouts in which they are published are read: kohya's (``lora_unet_down_blocks_0_...``,
where dots of a layer's name are underscores, and SDXL's UNet may have the names of its
original code) and diffusers' (``unet.down_blocks.0...lora_A.weight``, and older ones).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import ArgumentTypeError
from propolis.errors import FileFormatError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.arguments import expect_path
from propolis_workers.arguments import shown
from propolis_workers.sd.images import digest
from propolis_workers.sd.layers import prepared
from propolis_workers.sd.lora_names import spellings
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Module(Protocol):
        """A layer whose weight can be exchanged: a Linear or a Conv2d."""

        weight: Tensor


# How a key ends: kohya; PEFT, whose adapters may be named; diffusers before PEFT, twice.
_ENDS: Final = re.compile(
    r"(?P<layer>.+?)(?:"
    r"\.lora_(?P<kohya>down|up)\.weight"
    r"|\.lora_(?P<peft>A|B)(?:\.\w+)?\.weight"
    r"|(?:\.lora|\.lora_linear_layer|_lora)\.(?P<old>down|up)\.weight"
    r"|(?:\.lora|\.lora_linear_layer|_lora)?\.(?P<alpha>alpha)"
    r")"
)
_PARTS: Final = {"A": "down", "B": "up"}
_OTHERS: Final = {
    "lora_mid.weight": "a LoCon with a middle matrix",
    "dora_scale": "a DoRA",
    "lora_magnitude_vector": "a DoRA",
    "hada_w1_a": "a LoHa",
    "lokr_w1": "a LoKr",
    "lokr_w1_a": "a LoKr",
    "diff": "a file of whole differences",
}
"""Relatives of LoRA that are not read, by the end of their keys."""


@dataclass(frozen=True, slots=True)
class Update:
    """
    What a LoRA does to one layer.

    Attributes:
        layer: the layer's name as the file has it.
        down: f32 (rank, in) or (rank, in, kernel height, kernel width).
        up: f32 (out, rank) or (out, rank, 1, 1).
        scale: alpha / rank, or what the file says in its place.
    """

    layer: str
    down: np.ndarray
    up: np.ndarray
    scale: float


@dataclass(frozen=True, slots=True)
class LoRA:
    """
    A LoRA file, read.

    Attributes:
        path: the file, as given.
        sha256: of the file, in hexadecimal digits.
        updates: one for each layer that it changes.
    """

    path: str
    sha256: str
    updates: tuple[Update, ...]

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.path).name

    @classmethod
    def open(cls, path: str | Path) -> LoRA:
        """
        Read a safetensors file in kohya's or diffusers' layout.

        Raises:
            ArgumentTypeError: it is no path.
            ModelError: there is no such file, or it may not be read.
            FileFormatError: it is damaged, or a layer has one matrix of two.
            UnsupportedModelError: it is a pickle, or no LoRA but one of its relatives.
        """
        path = expect_path("path", path)
        with SafetensorsFolder.open(path) as source:
            found: dict[str, dict[str, str]] = {}
            for key in source.tensors:
                layer, part = _split(path, key)
                found.setdefault(layer, {})[part] = key
            if not any("down" in parts for parts in found.values()):
                msg = f"{path.name} holds no LoRA: no key ends in lora_down.weight or "
                msg += f"lora_A.weight (the first is {next(iter(source.tensors), 'none')!r})"
                raise UnsupportedModelError(msg)
            updates = tuple(_update(path, source, *entry) for entry in sorted(found.items()))
        return cls(str(path), digest(path), updates)


def _expect_lora(lora: object) -> None:
    if not isinstance(lora, LoRA):
        msg = f"lora is {shown(lora)}; supported: a LoRA, as LoRA.open gives one"
        raise ArgumentTypeError(msg)


class Adapters:
    """
    The LoRAs on a model: each can be taken off, in any order, and nothing of it is left.

    The layers' own weights are kept as they were, so a model has those of changed layers
    twice while a LoRA is on it.

    Attributes:
        active: the LoRAs with their strengths, in the order they were applied.
    """

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._modules = modules
        self._aliases = spellings(modules)
        self._own: dict[str, Tensor] = {}
        self._prepared: set[str] = set()
        self.active: list[tuple[LoRA, float]] = []

    def apply(self, lora: LoRA, strength: float = 1.0) -> None:
        """
        Add a LoRA's changes to the weights.

        Args:
            lora: the file.
            strength: what its changes are multiplied by; may be negative.

        Raises:
            ArgumentTypeError: one of them is something else.
            UsageError: it is for another model: a layer is missing or has another shape. The
                model is then as before.
        """
        _expect_lora(lora)
        if not isinstance(strength, Real) or isinstance(strength, bool):
            msg = f"strength is {shown(strength)}; supported: a number"
            raise ArgumentTypeError(msg)
        if not np.isfinite(strength):
            msg = f"LoRA {lora.name}: strength is {strength}; give a number"
            raise UsageError(msg)
        targets = [self._target(lora, update) for update in lora.updates]
        self.active.append((lora, strength))
        self._refresh(targets)

    def remove(self, lora: LoRA) -> None:
        """
        Take a LoRA off again: once it was the last on a layer, its weight is the same bits.

        Raises:
            ArgumentTypeError: it is no LoRA.
            UsageError: it is not on the model.
        """
        _expect_lora(lora)
        for index, (active, _) in enumerate(self.active):
            if active is lora:
                del self.active[index]
                self._refresh([self._target(lora, update) for update in lora.updates])
                return
        names = ", ".join(active.name for active, _ in self.active) or "none"
        msg = f"LoRA {lora.name} is not on the model; active: {names}"
        raise UsageError(msg)

    def _target(self, lora: LoRA, update: Update) -> str:
        """The model's name of a layer, whose weight has the shape that the update has."""
        name = self._aliases.get(update.layer)
        if name is None:
            msg = f"LoRA {lora.name} is for another model: it changes layer {update.layer!r} "
            msg += f"with matrices {update.down.shape} and {update.up.shape}, and this model has "
            msg += "no such layer"
            raise UsageError(msg)
        shape = self._modules[name].weight.shape
        fits = (
            update.up.shape[0] == shape[0]
            and int(np.prod(update.down.shape[1:])) == int(np.prod(shape[1:]))
            and update.down.shape[0] == int(np.prod(update.up.shape[1:]))
        )
        if not fits:
            msg = f"LoRA {lora.name} is for another model: layer {update.layer!r} has matrices "
            msg += f"{update.down.shape} and {update.up.shape}, the weight of this model's "
            msg += f"{name} is {shape}"
            raise UsageError(msg)
        return name

    def _refresh(self, names: list[str]) -> None:
        """Make the weights of some layers anew from their own and all active updates."""
        wanted = set(names)
        sums: dict[str, Tensor] = {}
        for lora, strength in self.active:
            for update in lora.updates:
                name = self._aliases[update.layer]
                if name in wanted:
                    own = self._own_weight(name)
                    start = sums.get(name)
                    sums[name] = _added(own if start is None else start, update, strength)
        for name in wanted:
            if name in sums:
                own = self._own[name]
                total = sums[name]
                if total.dtype is not own.dtype:
                    total = ops.cast(total, own.dtype)
                self._modules[name].weight = prepared(total) if name in self._prepared else total
            else:
                own = self._own.pop(name)
                again = name in self._prepared
                self._prepared.discard(name)
                self._modules[name].weight = prepared(own) if again else own

    def _own_weight(self, name: str) -> Tensor:
        """A layer's own, to add to: without the form that an implementation prepared of it."""
        if name not in self._own:
            weight = self._modules[name].weight
            if weight.prepared:
                self._prepared.add(name)
                weight = Tensor(weight.storage, weight.layout, weight.dtype, weight.device)
            self._own[name] = weight
        return self._own[name]


def _added(weight: Tensor, update: Update, strength: float) -> Tensor:
    """The weight in f32 with one update on it, rounded once."""
    device = weight.device
    rank = update.down.shape[0]
    up = Tensor.from_numpy(update.up.reshape(-1, rank), device)
    down = Tensor.from_numpy(update.down.reshape(rank, -1), device)
    change = ops.affine(ops.matmul(up, down), update.scale * strength, 0.0)
    base = weight if weight.dtype is dtypes.f32 else ops.cast(weight, dtypes.f32)
    return ops.add(base, change.reshape(*weight.shape))


def _split(path: Path, key: str) -> tuple[str, str]:
    """A key's layer, and whether it holds ``down``, ``up`` or ``alpha``."""
    match = _ENDS.fullmatch(key)
    if match:
        part = match["kohya"] or match["peft"] or match["old"] or match["alpha"]
        return match["layer"], _PARTS.get(part, part)
    kind = next((kind for end, kind in _OTHERS.items() if key.endswith("." + end)), None)
    known = f"{path.name} is {kind} (key {key!r})"
    unknown = f"{path.name} is no LoRA that can be read (unknown key {key!r})"
    msg = f"{known if kind else unknown}; supported: LoRA in kohya's or diffusers' layout"
    raise UnsupportedModelError(msg)


def _update(path: Path, source: SafetensorsFolder, layer: str, parts: dict[str, str]) -> Update:
    missing = [part for part in ("down", "up") if part not in parts]
    if missing:
        msg = f"{path.name}: layer {layer!r} has no {missing[0]} matrix; get the file again"
        raise FileFormatError(msg)
    down, up = (_values(path, source, parts[part]) for part in ("down", "up"))
    if down.ndim not in (2, 4) or up.ndim not in (2, 4) or not down.shape[0]:
        msg = f"{path.name}: layer {layer!r} has matrices of shapes {down.shape} and {up.shape}; "
        msg += "supported: those of linear layers and 2-D convolutions"
        raise UnsupportedModelError(msg)
    rank = down.shape[0]
    if "alpha" in parts:
        values = _values(path, source, parts["alpha"])
        if values.size != 1:
            msg = f"{path.name}: the alpha of layer {layer!r} has shape {values.shape}, "
            msg += "it must be one number"
            raise FileFormatError(msg)
        scale = float(values.reshape(())) / rank
    else:
        scale = _stated_scale(path, source, layer, rank)
    return Update(layer, down, up, scale)


def _stated_scale(path: Path, source: SafetensorsFolder, layer: str, rank: int) -> float:
    """
    What diffusers wrote about a layer's scale into the header; 1 where it did not.

    ``lora_adapter_metadata`` has PEFT's settings, for each part of the model with its prefix.  Of
    its ``alpha_pattern`` a layer takes the first that is its name, or what that ends with; with
    ``use_rslora`` (Kalajdzievski 2023) the root of the rank divides alpha.
    """
    text = source.metadata.get("lora_adapter_metadata")
    if text is None:
        return 1.0
    try:
        stated = json.loads(text)
        part, _, name = layer.partition(".")
        alpha = stated.get(f"{part}.lora_alpha")
        alpha = rank if alpha is None else alpha
        for pattern, own in (stated.get(f"{part}.alpha_pattern") or {}).items():
            if not re.fullmatch(r"[\w.]+", pattern):  # PEFT takes regular expressions
                msg = f"{path.name}: its alpha_pattern has {pattern[:80]!r}; supported: names of "
                msg += "layers, or what these end with: ask for a file with them"
                raise UnsupportedModelError(msg)
            if f".{name}".endswith(f".{pattern}"):
                alpha = own
                break
        return float(alpha) / (math.sqrt(rank) if stated.get(f"{part}.use_rslora") else rank)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        msg = f"{path.name}: its lora_adapter_metadata cannot be used: {error}; get the file again"
        raise FileFormatError(msg) from None


def _values(path: Path, source: SafetensorsFolder, key: str) -> np.ndarray:
    """The values of a tensor in f32, in memory of their own."""
    info = source.tensors[key]
    if not info.dtype.is_float:
        msg = f"{path.name}: {key!r} is {info.dtype}; a LoRA is in floats"
        raise UnsupportedModelError(msg)
    return np.array(source.data(key).view(info.dtype.numpy).reshape(info.shape), np.float32)


__all__ = ["Adapters", "LoRA", "Update"]
