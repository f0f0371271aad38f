"""What ``model_index.json`` says of a pipeline, and what its class makes of other settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.files import read_json


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INDEX: Final = "model_index.json"
_ENCODERS: Final = ("text_encoder", "text_encoder_2")
_TOKENIZERS: Final = ("tokenizer", "tokenizer_2")

_SD: Final = tuple(f"StableDiffusion{task}Pipeline" for task in ("", "Img2Img", "Inpaint"))
_XL: Final = tuple(f"StableDiffusionXL{task}Pipeline" for task in ("", "Img2Img", "Inpaint"))
_LCM: Final = tuple(f"LatentConsistencyModel{task}Pipeline" for task in ("", "Img2Img"))

_CLASSES: Final = {
    "unet": ("UNet2DConditionModel",),
    "vae": ("AutoencoderKL",),
    "text_encoder": ("CLIPTextModel", "CLIPTextModelWithProjection"),
    "text_encoder_2": ("CLIPTextModelWithProjection", "CLIPTextModel"),
    "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
    "tokenizer_2": ("CLIPTokenizer", "CLIPTokenizerFast"),
}


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """
    A pipeline's parts.

    Attributes:
        path: of the file.
        values: what it holds.
        encoders: the names of the text encoders: one, or two.
        tokenizers: those of their tokenizers.
    """

    path: Path
    values: Mapping[str, Any]
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> ModelIndex:
        """
        Read it.

        Raises:
            ModelError: the folder has none.
            UnsupportedModelError: it is of a pipeline that is not Stable Diffusion's, or has
                parts that the worker does not run.
        """
        values = _read(folder)
        path = folder / INDEX
        named = values.get("_class_name")
        known = (*_SD, *_XL, *_LCM)
        if named is not None and named not in known:
            msg = f"{path}: a {named!s:.60}, which is not supported; supported: {', '.join(known)}"
            raise UnsupportedModelError(msg)
        for name in ("unet", "vae", "scheduler"):
            if _class_of(values, name) is None:
                msg = (
                    f"{path}: a {named or 'pipeline'!s:.60} without {name}; "
                    f"supported: those of Stable Diffusion 1, 2 and XL"
                )
                raise UnsupportedModelError(msg)
        for name, classes in _CLASSES.items():
            found = _class_of(values, name)
            if found is not None and found not in classes:
                msg = f"{path}: {name} is a {found!s:.60}; supported: {' or '.join(classes)}"
                raise UnsupportedModelError(msg)
        encoders, tokenizers = (
            tuple(name for name in names if _class_of(values, name) is not None)
            for names in (_ENCODERS, _TOKENIZERS)
        )
        if not encoders or len(encoders) != len(tokenizers):
            msg = (
                f"{path}: {len(encoders)} text encoders and {len(tokenizers)} tokenizers; "
                f"supported: one of each, or two (SDXL)"
            )
            raise UnsupportedModelError(msg)
        return cls(path, values, encoders, tokenizers)

    def expect_kind(self, *, xl: bool) -> None:
        """
        Check that the UNet is what the pipeline's class takes.

        Args:
            xl: whether it is SDXL's, which is told sizes and pooled text.

        Raises:
            UnsupportedModelError: it is not; diffusers cannot draw with it either.
        """
        named = self.values.get("_class_name")
        if named is not None and (named in _XL) != xl:
            what = "SDXL's" if xl else "Stable Diffusion 1's or 2's"
            msg = f"{self.path}: a {named}, and its UNet is {what}; one of them is another model's"
            raise UnsupportedModelError(msg)

    @property
    def masks_padding(self) -> bool:
        """Whether text encoders that want it are told which tokens only fill up."""
        return not self._class("xl")

    @property
    def zeros_for_empty_prompt(self) -> bool:
        """Whether an empty negative prompt is zeros instead of an encoded text: SDXL's alone."""
        return self._class("xl") and bool(self.values.get("force_zeros_for_empty_prompt", True))

    def scheduler_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """
        The scheduler's settings as diffusers' pipeline has them once it is made.

        The class is the index's.  Pipelines of Stable Diffusion 1 and 2 set ``steps_offset`` to
        1, and but for inpainting ``clip_sample`` to false, whatever the file says.

        Args:
            config: what ``scheduler_config.json`` holds.
        """
        corrected: dict[str, Any] = {"steps_offset": 1} if self._class("sd") else {}
        if corrected and "Inpaint" not in str(self.values.get("_class_name")):
            corrected["clip_sample"] = False
        return {**config, "_class_name": _class_of(self.values, "scheduler"), **corrected}

    def _class(self, kind: str) -> bool:
        named = self.values.get("_class_name")
        if named is None:
            return kind == ("xl" if len(self.encoders) > 1 else "sd")
        return named in {"sd": _SD, "xl": _XL}[kind]


def _read(folder: Path) -> dict[str, Any]:
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


def _class_of(values: Mapping[str, Any], name: str) -> Any:
    """The class of a component: ``[library, class]``, both null where there is none."""
    entry = values.get(name)
    return entry[1] if isinstance(entry, list) and len(entry) == 2 else None


__all__ = ["INDEX", "ModelIndex"]
