"""Loading a model from a folder in the layout of diffusers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import TypeVar

from propolis import dtypes
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.files import read_json
from propolis_workers.sd import clip
from propolis_workers.sd import vae
from propolis_workers.sd.clip import CLIPText
from propolis_workers.sd.config import CLIPTextConfig
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.config import VAEConfig
from propolis_workers.sd.layers import Weights
from propolis_workers.sd.unet import UNet2DCondition
from propolis_workers.sd.vae import AutoencoderKL
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Device
    from propolis import DType
    from propolis_workers.sd.layers import Conv2d
    from propolis_workers.sd.layers import Linear
    from propolis_workers.weights._file import StrPath

_T = TypeVar("_T")

INDEX: Final = "model_index.json"
_ENCODERS: Final = ("text_encoder", "text_encoder_2")
_TOKENIZERS: Final = ("tokenizer", "tokenizer_2")


@dataclass(frozen=True, slots=True)
class Components:
    """
    The parts of a pipeline, on a device.

    Attributes:
        folder: where they come from.
        text_encoders: one, or the two of SDXL.
        tokenizer_folders: where the tokenizer of each is.
        unet: the UNet.
        vae: the VAE.
        scheduler_config: what ``scheduler/scheduler_config.json`` holds.
        model_index: what ``model_index.json`` holds.
        modules: the linear and convolution layers by full name, as ``unet.conv_in`` or
            ``text_encoder.text_model.encoder.layers.0.mlp.fc1``.
    """

    folder: Path
    text_encoders: tuple[CLIPText, ...]
    tokenizer_folders: tuple[Path, ...]
    unet: UNet2DCondition
    vae: AutoencoderKL
    scheduler_config: dict[str, Any]
    model_index: dict[str, Any]
    modules: dict[str, Linear | Conv2d]


def load_components(
    folder: StrPath,
    device: Device,
    dtype: DType = dtypes.f32,
    progress: Callable[[int, int], None] | None = None,
) -> Components:
    """
    Load a model.

    A VAE of SDXL whose settings say that it overflows f16 (``force_upcast``), or do not say that it
    does not, is loaded in f32 then.  Other models' settings say so too, for no reason: diffusers
    writes its defaults, and heeds this one for SDXL alone.

    Args:
        folder: with ``model_index.json`` and the folders of the components; their weights
            are safetensors, in one file or in shards, of full precision or ``fp16``.
        device: where the weights go.
        dtype: what they become: f32, f16 or bf16.
        progress: called with the bytes loaded so far and all there are.

    Raises:
        ModelError: something is missing or does not fit; the message names the file and
            the tensor.
        FileFormatError: a file is damaged.
        UnsupportedModelError: the weights are pickles, or a component is of a kind that
            the worker does not run.
    """
    folder = Path(folder)
    index = _index(folder)
    for name in ("unet", "vae", "scheduler"):
        if not _names_a_class(index, name):
            msg = (
                f"{folder / INDEX}: a {index.get('_class_name', 'pipeline')!s:.60} without {name}; "
                f"supported: those of Stable Diffusion 1, 2 and XL"
            )
            raise UnsupportedModelError(msg)
    encoders = [name for name in _ENCODERS if _names_a_class(index, name)]
    tokenizers = [folder / name for name in _TOKENIZERS if _names_a_class(index, name)]
    if not encoders or len(encoders) != len(tokenizers):
        msg = (
            f"{folder / INDEX}: {len(encoders)} text encoders and {len(tokenizers)} tokenizers; "
            f"supported: one of each, or two (SDXL)"
        )
        raise UnsupportedModelError(msg)
    for needed in (*tokenizers, folder / "scheduler"):
        if not needed.is_dir():
            msg = f"{needed}: there is no such folder; get the whole model again"
            raise ModelError(msg)
    scheduler = read_json(folder / "scheduler" / "scheduler_config.json")
    loader = _Loader(folder, device, dtype, [*encoders, "unet", "vae"], progress)
    text_encoders = tuple(loader.text_encoder(name) for name in encoders)
    unet = loader.unet()
    return Components(
        folder=folder,
        text_encoders=text_encoders,
        tokenizer_folders=tuple(tokenizers),
        unet=unet,
        vae=loader.vae(overflows=unet.config.addition_embed_dim > 0),
        scheduler_config=scheduler,
        model_index=index,
        modules=loader.modules,
    )


def _index(folder: Path) -> dict[str, Any]:
    """What says which components there are."""
    path = folder / INDEX
    if path.is_file():
        return read_json(path)
    if not folder.exists():
        msg = f"{folder}: there is no such folder; check the path"
    elif folder.is_file():
        msg = (
            f"{folder}: a file; give a folder in the layout of diffusers (a single file of "
            f"weights is converted by diffusers' from_single_file and save_pretrained)"
        )
        raise UnsupportedModelError(msg)
    else:
        msg = f"{folder}: no {INDEX} in the folder; give one in the layout of diffusers"
    raise ModelError(msg)


def _names_a_class(index: dict[str, Any], name: str) -> bool:
    """Whether the pipeline has a component: ``[library, class]``, both null where not."""
    entry = index.get(name)
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


class _Loader:
    """Loads components one after the other, and counts their bytes."""

    def __init__(
        self,
        folder: Path,
        device: Device,
        dtype: DType,
        names: list[str],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.modules: dict[str, Linear | Conv2d] = {}
        self._device = device
        self._dtype = dtype
        self._progress = progress
        # All are opened first: what is missing is known before any weight is read.
        self._sources = {name: _open(folder / name) for name in names}
        self._done = 0
        self._total = sum(
            info.nbytes for source in self._sources.values() for info in source.tensors.values()
        )

    def text_encoder(self, name: str) -> CLIPText:
        source = self._sources[name]
        config = CLIPTextConfig.from_json(source.config, str(source.path / "config.json"))
        weights = self._weights(name, self._dtype, clip.ALIASES)
        return self._built(name, lambda: CLIPText(config, weights), weights)

    def unet(self) -> UNet2DCondition:
        source = self._sources["unet"]
        config = UNetConfig.from_json(source.config, str(source.path / "config.json"))
        weights = self._weights("unet", self._dtype, ())
        return self._built("unet", lambda: UNet2DCondition(config, weights), weights)

    def vae(self, *, overflows: bool) -> AutoencoderKL:
        source = self._sources["vae"]
        config = VAEConfig.from_json(source.config, str(source.path / "config.json"))
        upcast = overflows and config.force_upcast and self._dtype is dtypes.f16
        weights = self._weights("vae", dtypes.f32 if upcast else self._dtype, vae.ALIASES)
        return self._built("vae", lambda: AutoencoderKL(config, weights), weights)

    def _weights(self, name: str, dtype: DType, aliases: tuple[tuple[str, str], ...]) -> Weights:
        return Weights(
            self._sources[name], self._device, dtype, aliases=aliases, progress=self._count
        )

    def _built(self, name: str, build: Callable[[], _T], weights: Weights) -> _T:
        try:
            built = build()
        except ModelError as error:
            msg = f"{self._sources[name].path}: {error}"
            raise type(error)(msg) from error
        self.modules |= {f"{name}.{key}": layer for key, layer in weights.modules.items()}
        return built

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _open(folder: Path) -> SafetensorsFolder:
    """The weights and settings of a component."""
    if not folder.is_dir():
        msg = f"{folder}: there is no such folder; get the whole model again"
        raise ModelError(msg)
    source = SafetensorsFolder.open(folder)
    if not source.config:
        msg = f"{folder / 'config.json'}: there is no such file; get the whole model again"
        raise ModelError(msg)
    return source


__all__ = ["INDEX", "Components", "load_components"]
