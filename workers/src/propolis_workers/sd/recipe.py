"""What an image is drawn from, as command lines and PNG files have it: names of files."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import FileFormatError
from propolis.errors import UsageError
from propolis.files import expanded
from propolis_workers.sd.images import check_png
from propolis_workers.sd.images import digest
from propolis_workers.sd.images import read_image
from propolis_workers.sd.images import read_mask
from propolis_workers.sd.images import read_metadata
from propolis_workers.sd.images import write_png
from propolis_workers.sd.lora import LoRA
from propolis_workers.sd.models import PACKAGED
from propolis_workers.sd.params import GenerateParams
from propolis_workers.sd.params import expect_batch
from propolis_workers.sd.result import numbered


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.sd.result import Images

# The parameters that are values, and what they may be.
_VALUES: Final[Mapping[str, tuple[type, ...]]] = {
    "prompt": (str,),
    "negative": (str,),
    "width": (int,),
    "height": (int,),
    "steps": (int,),
    "guidance": (int, float),
    "seed": (int,),
    "batch": (int,),
    "scheduler": (str,),
    "sigmas": (str,),
    "spacing": (str,),
    "eta": (int, float),
    "strength": (int, float),
}
DTYPES: Final = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class File:
    """
    A file that an image is drawn from.

    Attributes:
        path: as it was given.
        sha256: of what it held when the image was drawn; None where that is still to come.
        strength: of a LoRA.
    """

    path: str
    sha256: str | None = None
    strength: float = 1.0

    def sealed(self, what: str) -> File:
        """
        The same with its SHA-256, which must be the one that is known, if one is.

        Raises:
            UsageError: it is another file, or cannot be read.
        """
        found = digest(self.path)
        if self.sha256 not in (None, found):
            msg = f"{self.path} is not the {what} that the image was drawn from, its SHA-256 is "
            msg += f"another: give the right one with --{what}"
            raise UsageError(msg)
        return replace(self, sha256=found)

    def named(self) -> dict[str, str | None]:
        """What metadata says of it."""
        return {"file": self.path, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Recipe:
    """
    All that a command line says about what is drawn.

    Attributes:
        values: parameters of GenerateParams that are not arrays; missing ones are open.
        image: to start from.
        mask: what of it is drawn anew.
        loras: what changes the model.
        model: the folder; None for the packaged model.
        origin: the file that says so, of which the model may be somebody else's.
        dtype: of the weights.
        index: the one image of the batch that is wanted; None for all.
    """

    values: dict[str, Any] = field(default_factory=dict)
    image: File | None = None
    mask: File | None = None
    loras: tuple[File, ...] = ()
    model: str | None = None
    dtype: str = "f32"
    index: int | None = None
    origin: str | Path | None = None

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """
        What a PNG file was drawn from.

        Raises:
            UsageError: there is no such file.
            FileFormatError: Propolis did not write it, or what it says cannot be.
        """
        found = read_metadata(path)
        loras = _typed(path, {"loras": [], **found}, "loras", (list,))
        model = _typed(path, found, "model", (str, type(None)))
        recipe = cls(
            values={k: _typed(path, found, k, kinds) for k, kinds in _VALUES.items() if k in found},
            image=_file(path, found, "image"),
            mask=_file(path, found, "mask"),
            loras=tuple(_file_of(path, one) for one in loras),
            model=None if model == PACKAGED else model,
            dtype=_typed(path, found, "dtype", (str,)),
            index=_typed(path, found, "index", (int,)) if "index" in found else None,
            origin=path,
        )
        batch = recipe.values.get("batch", 1)
        if recipe.dtype not in DTYPES or not 0 <= (recipe.index or 0) < max(batch, 1):
            msg = f"{path}: its metadata names dtype {recipe.dtype!r} and image {recipe.index} of "
            msg += f"{batch}, which cannot be"
            raise FileFormatError(msg)
        if recipe.model == "" or (recipe.index is not None and "seed" not in recipe.values):
            lacking = "model" if recipe.model == "" else "seed"
            msg = f"{path}: its metadata has no {lacking}: give another image, or say what to draw"
            raise FileFormatError(msg)
        return recipe

    def changed(self, options: Mapping[str, Any]) -> Recipe:
        """
        The same with what a command line says besides; None stands for nothing.

        Raises:
            UsageError: there is no prompt then.
        """
        given = {k: options[k] for k in _VALUES if options.get(k) is not None}
        values, index = {**self.values, **given}, self.index
        if index is not None and given.keys() & {"seed", "batch"}:
            # No longer that image: one like it, alone.
            values |= {"seed": self.values["seed"] + index, "batch": 1, **given}
            index = None
        if "prompt" not in values:
            raise UsageError('say what to draw: propolis sd generate "a red circle"')
        loras = tuple(map(_lora_option, options.get("loras") or ()))
        image, mask = (
            File(options[name]) if options.get(name) is not None else stored
            for name, stored in (("image", self.image), ("mask", self.mask))
        )
        return replace(
            self,
            values=values,
            image=image,
            mask=mask,
            loras=loras or self.loras,
            model=options.get("model") or self.model,
            origin=None if options.get("model") else self.origin,
            dtype=options.get("dtype") or self.dtype,
            index=index,
        )

    def sealed(self) -> Recipe:
        """
        The same with the SHA-256 of all files.

        Raises:
            UsageError: a file is missing, or another one than it was, or a PNG's model is not here.
        """
        if self.origin is not None and self.model is not None and not expanded(self.model).exists():
            msg = f"{self.origin} was drawn by the model {self.model!r}, which is no folder here; "
            msg += "-m FOLDER says where it is"
            raise UsageError(msg)
        return replace(
            self,
            image=self.image and self.image.sealed("image"),
            mask=self.mask and self.mask.sealed("mask"),
            loras=tuple(file.sealed("lora") for file in self.loras),
        )

    def expect_apart(self, path: Path) -> None:
        """
        Check that what is written replaces nothing that is read.

        Raises:
            UsageError: the output is the image or the mask; or it is too many.
        """
        batch = self.values.get("batch")
        if batch is not None:
            expect_batch(batch)
        outputs = {os.path.realpath(one) for one in numbered(path, batch or 1)}
        for name, file in (("image", self.image), ("mask", self.mask)):
            if file is not None and os.path.realpath(file.path) in outputs:
                msg = f"{path} would replace the {name} {file.path}; give another file with -o"
                raise UsageError(msg)

    def params(self) -> GenerateParams:
        """
        The parameters, files read.

        Raises:
            UsageError: a file is missing.
            FileFormatError: one is no image.
        """
        image = None if self.image is None else read_image(self.image.path)
        mask = None if self.mask is None else read_mask(self.mask.path)
        return GenerateParams(**self.values, image=image, mask=mask)

    def open_loras(self) -> list[tuple[LoRA, float]]:
        """
        The LoRAs and their strengths.

        Raises:
            ModelError: one is missing, damaged or of another kind.
        """
        return [(LoRA.open(file.path), file.strength) for file in self.loras]

    def metadata(self, images: Images) -> list[dict[str, Any]]:
        """What reproduces each image that is wanted; of a sealed recipe."""
        files: dict[str, Any] = {}
        for name, file in (("image", self.image), ("mask", self.mask)):
            if file is not None:
                files[name] = file.named()
        return [{**images.metadata(index), **files} for index in self._wanted(images)]

    def save(self, images: Images, path: Path | None) -> list[Path]:
        """
        Write the images that are wanted, with what reproduces them; by a free name for None.

        Raises:
            UsageError: one cannot be written.
        """
        wanted = self._wanted(images)
        paths = numbered(path or free_path(len(wanted)), len(wanted))
        try:
            for one, index, metadata in zip(paths, wanted, self.metadata(images), strict=True):
                write_png(one, images[index], metadata)
        except UsageError:
            if path is None and paths[0].exists() and not paths[0].stat().st_size:
                paths[0].unlink()  # the name was only taken
            raise
        return paths

    def _wanted(self, images: Images) -> range:
        return range(len(images)) if self.index is None else range(self.index, self.index + 1)


def output_path(given: str | None) -> Path:
    """
    The file to write; one that is free where none is named.

    Raises:
        UsageError: it is no PNG, or cannot be written.
    """
    if given is not None and not given.strip():
        msg = "-o is blank: give a file, or leave it out"
        raise UsageError(msg)
    path = Path("out.png" if given is None else given)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.stat()
    except OSError as exc:  # no name of a file, or a link to itself
        msg = f"{path} cannot be written: {exc.strerror}; give another file with -o"
        raise UsageError(msg) from exc
    if not path.is_dir():
        check_png(path)
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        what = "it is a folder" if path.is_dir() else f"{folder} is no folder that can be written"
        msg = f"{path} cannot be written: {what}; give another file with -o"
        raise UsageError(msg)
    number = 1
    while given is None and (path.exists() or numbered(path, 2)[0].exists()):
        number += 1
        path = Path(f"out.{number}.png")
    return path


def free_path(count: int) -> Path:
    """
    A free name for so many images, taken at once: who draws beside this process gets the next.

    Raises:
        UsageError: nothing can be written here.
    """
    while True:
        path = output_path(None)
        with contextlib.suppress(FileExistsError):
            numbered(path, count)[0].open("xb").close()
            return path


def _lora_option(text: str) -> File:
    """``FILE`` or ``FILE=STRENGTH``; what comes after the last ``=`` counts if it is a number."""
    path, _, strength = text.rpartition("=")
    try:
        return File(path, strength=float(strength)) if path else File(text)
    except ValueError:
        if Path(text).exists() or not Path(path).is_file():
            return File(text)
        msg = f"--lora {text}: the strength {strength!r} is no number; give {path}=0.6, or {path}"
        raise UsageError(msg) from None


def _typed(path: str | Path, found: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    value = found.get(name)
    if not isinstance(value, kinds) or isinstance(value, bool):
        msg = f"{path}: its metadata says {name} is {str(value)[:60]!r}, which cannot be"
        raise FileFormatError(msg)
    return value


def _file(path: str | Path, found: Mapping[str, Any], name: str) -> File | None:
    return _file_of(path, found[name]) if name in found else None


def _file_of(path: str | Path, entry: object) -> File:
    if not isinstance(entry, dict):
        msg = f"{path}: its metadata names a file as {str(entry)[:60]!r}, which cannot be"
        raise FileFormatError(msg)
    file, sha256 = (_typed(path, entry, name, (str,)) for name in ("file", "sha256"))
    strength = _typed(path, entry, "strength", (int, float)) if "strength" in entry else 1.0
    return File(file, sha256, strength)


__all__ = ["DTYPES", "File", "Recipe", "output_path"]
