"""Loading a model from a folder in the layout of diffusers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

from propolis import dtypes
from propolis.errors import ModelError
from propolis_workers.files import read_json
from propolis_workers.sd import clip
from propolis_workers.sd import vae
from propolis_workers.sd.clip import CLIPText
from propolis_workers.sd.config import CLIPTextConfig
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.config import VAEConfig
from propolis_workers.sd.layers import Weights
from propolis_workers.sd.model_index import INDEX
from propolis_workers.sd.model_index import ModelIndex
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
        scheduler_config: what ``scheduler/scheduler_config.json`` holds, as the pipeline has it.
        model_index: what ``model_index.json`` says.
        modules: the linear and convolution layers by full name, as ``unet.conv_in`` or
            ``text_encoder.text_model.encoder.layers.0.mlp.fc1``.
    """

    folder: Path
    text_encoders: tuple[CLIPText, ...]
    tokenizer_folders: tuple[Path, ...]
    unet: UNet2DCondition
    vae: AutoencoderKL
    scheduler_config: dict[str, Any]
    model_index: ModelIndex
    modules: dict[str, Linear | Conv2d]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels of the images that the model was made for."""
        height, width = self.unet.config.sample_size
        return width * self.vae.config.scale, height * self.vae.config.scale


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
    index = ModelIndex.of(folder)
    encoders, tokenizers = index.encoders, [folder / name for name in index.tokenizers]
    for needed in (*tokenizers, folder / "scheduler"):
        if not needed.is_dir():
            msg = f"{needed}: there is no such folder; get the whole model again"
            raise ModelError(msg)
    scheduler = read_json(folder / "scheduler" / "scheduler_config.json")
    loader = _Loader(folder, device, dtype, [*encoders, "unet", "vae"], progress)
    masked = index.masks_padding
    text_encoders = tuple(loader.text_encoder(name, masked=masked) for name in encoders)
    unet = loader.unet()
    index.expect_kind(xl=unet.config.addition_embed_dim > 0)
    return Components(
        folder=folder,
        text_encoders=text_encoders,
        tokenizer_folders=tuple(tokenizers),
        unet=unet,
        vae=loader.vae(overflows=unet.config.addition_embed_dim > 0),
        scheduler_config=index.scheduler_config(scheduler),
        model_index=index,
        modules=loader.modules,
    )


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
        self._sources = {
            name: _open(folder / name, diffusers=name in ("unet", "vae")) for name in names
        }
        self._done = 0
        self._total = sum(
            info.nbytes for source in self._sources.values() for info in source.tensors.values()
        )

    def text_encoder(self, name: str, *, masked: bool) -> CLIPText:
        source = self._sources[name]
        where = str(source.path / "config.json")
        config = CLIPTextConfig.from_json(source.config, where, masked=masked)
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


def _open(folder: Path, *, diffusers: bool) -> SafetensorsFolder:
    """The weights and settings of a component, of diffusers or of transformers."""
    if not folder.is_dir():
        msg = f"{folder}: there is no such folder; get the whole model again"
        raise ModelError(msg)
    source = SafetensorsFolder.open(folder, diffusers=diffusers)
    if not source.config:
        config = folder / "config.json"
        what = "it has no settings" if config.exists() else "there is no such file"
        msg = f"{config}: {what}; get the whole model again"
        raise ModelError(msg)
    return source


__all__ = ["INDEX", "Components", "load_components"]
