"""
Images in files: read to arrays, write as PNG with what reproduces them.

An image is an u8 array (height, width, 3), a mask an u8 array (height, width): 255 is
drawn anew, 0 kept.  Pillow does the work; what can be wrong with a file is said here.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from propolis.errors import FileFormatError
from propolis.errors import UsageError
from propolis.files import write_answer


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

    from PIL import Image as PillowImage

Pixels = npt.NDArray[np.uint8]

METADATA_KEY: Final = "propolis"

# What is read: Pillow knows more, some of which (EPS) it has other programs run.
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_SENT: Final = ("PNG", "JPEG", "WEBP")
"""Of those that somebody sends, whom nobody knows."""

_MOST_SENT: Final = 1 << 24
"""Pixels of an image that somebody sends: decoded it takes some hundred MB."""


def read_image(path: str | Path, data: bytes | None = None) -> Pixels:
    """
    Read an image as it is looked at: turned as its camera says, transparency on white.

    Args:
        path: a PNG, JPEG, WebP, GIF, BMP, TIFF or PPM file.
        data: what is in it, where it is no file: ``path`` then says what it is called.

    Returns:
        u8 (height, width, 3).

    Raises:
        UsageError: there is no such file, or it may not be read.
        FileFormatError: it is no image, damaged, of more pixels than Pillow takes, or of
            numbers that say no brightness.
    """
    from PIL import Image  # noqa: PLC0415  (not for --help)

    with _opened(path, data) as image:
        seen = _seen(path, image)
        if seen.has_transparency_data:
            rgba = seen.convert("RGBA")
            seen = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return np.asarray(seen.convert("RGB"))


def read_mask(path: str | Path, data: bytes | None = None) -> Pixels:
    """
    Read a mask: what is lighter than half is drawn anew.

    Args:
        path: such a file as :func:`read_image` takes; colours count by their luminance.
        data: as for :func:`read_image`.

    Returns:
        u8 (height, width), 0 or 255.

    Raises:
        UsageError: there is no such file, or it may not be read.
        FileFormatError: as :func:`read_image`; or a part of it is transparent, which may
            mean either.
    """
    with _opened(path, data) as image:
        seen = _seen(path, image)
        if seen.has_transparency_data and np.asarray(seen.convert("RGBA"))[..., 3].min() < 255:
            msg = f"masks are white on black, and {path} has transparency: flatten it"
            raise FileFormatError(msg)
        grey = np.asarray(seen.convert("L"))
    if grey.max() == 1:
        msg = f"{path} has no more than 1, which is nearly black; masks have 255 where the image "
        msg += "is drawn anew: multiply it by 255"
        raise FileFormatError(msg)
    return np.where(grey >= 128, np.uint8(255), np.uint8(0))


def transparent(name: str, data: bytes) -> Pixels | None:
    """
    A mask of where an image is transparent.

    Args:
        name: what the image is called.
        data: the file.

    Returns:
        u8 (height, width), 255 where it is transparent, 0 elsewhere; None where the image has no
        transparency at all.

    Raises:
        FileFormatError: it is no image, or damaged, or too large.
    """
    with _opened(name, data) as image:
        if not image.has_transparency_data:
            return None
        alpha = np.asarray(_seen(name, image).convert("RGBA"))[..., 3]
    return np.where(alpha < 128, np.uint8(255), np.uint8(0))


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """
    Resize an image (Lanczos) or a mask (nearest: it stays black and white).

    Args:
        pixels: u8 (h, w, 3) or (h, w).
        width: wanted, in pixels.
        height: wanted, in pixels.

    Returns:
        u8 (height, width, 3) or (height, width).
    """
    from PIL import Image  # noqa: PLC0415  (not for --help)

    if pixels.shape[:2] == (height, width):
        return pixels
    how = Image.Resampling.NEAREST if pixels.ndim == 2 else Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(pixels).resize((width, height), how))


def check_png(path: str | Path) -> None:
    """
    Refuse a name for a file of images that is not that of a PNG.

    Raises:
        UsageError: it is not; names one that is.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        ending = path.name.lower() in ("", ".png")  # alone
        near = path.parent / "out.png" if ending else path.with_suffix(".png")
        msg = f"{path}: images are written as PNG, which holds what reproduces them; give {near}"
        raise UsageError(msg)


def png(pixels: Pixels, metadata: Mapping[str, Any] | None = None) -> bytes:
    """
    An image as a PNG file: the same pixels and metadata are the same bytes.

    Args:
        pixels: u8 (height, width, 3).
        metadata: stored as JSON in a text chunk named ``propolis``.
    """
    from PIL import Image  # noqa: PLC0415  (not for --help)
    from PIL.PngImagePlugin import PngInfo  # noqa: PLC0415

    info = PngInfo()
    if metadata is not None:
        info.add_itxt(METADATA_KEY, json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", pnginfo=info)
    return file.getvalue()


def write_png(path: str | Path, pixels: Pixels, metadata: Mapping[str, Any] | None = None) -> None:
    """
    Write a PNG as :func:`png` makes it; an old file stays where that fails.

    Args:
        path: the file, or a link to it.
        pixels: u8 (height, width, 3).
        metadata: stored in it.

    Raises:
        UsageError: it cannot be written there.
    """
    write_answer(Path(path), png(pixels, metadata))


def read_metadata(path: str | Path) -> dict[str, Any]:
    """
    Read what :func:`write_png` stored.

    Args:
        path: a PNG file.

    Returns:
        the metadata.

    Raises:
        UsageError: there is no such file, or it may not be read.
        FileFormatError: it is no image, or was not written by Propolis.
    """
    with _opened(path) as image:
        image.load()  # text chunks may follow the pixels
        text = getattr(image, "text", {}).get(METADATA_KEY)
    if text is None:
        msg = f"{path} has no metadata of Propolis: only PNG files that `propolis sd generate` "
        msg += "wrote, and that no other program saved since, have it"
        raise FileFormatError(msg)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path}: its metadata is not JSON: {error}"
        raise FileFormatError(msg) from None
    if not isinstance(found, dict):
        msg = f"{path}: its metadata is a {type(found).__name__}, not an object"
        raise FileFormatError(msg)
    return found


def digest(path: str | Path) -> str:
    """
    The SHA-256 of a file, in hexadecimal digits.

    Raises:
        UsageError: there is no such file, or it may not be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}; check the path"
        raise UsageError(msg) from None


def _seen(path: str | Path, image: PillowImage.Image) -> PillowImage.Image:
    """
    An image turned as its camera says, with 8 bits a channel.

    Pillow converts 16 bits by clipping them at 255, not by scaling them.
    """
    from PIL import Image  # noqa: PLC0415  (not for --help)
    from PIL import ImageOps  # noqa: PLC0415

    turned = ImageOps.exif_transpose(image)
    if turned.mode != "F" and not turned.mode.startswith("I"):
        return turned
    values = np.asarray(turned)
    if turned.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        kind = "floats" if turned.mode == "F" else f"{values.min()} to {values.max()}"
        msg = f"the pixels of {path} are {kind}; supported: 8 or 16 bits a channel"
        raise FileFormatError(msg)
    grey = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    clear = turned.info.get("transparency")
    if clear is not None:
        grey.putalpha(Image.fromarray(np.where(values == clear, np.uint8(0), np.uint8(255))))
    return grey


@contextlib.contextmanager
def _opened(path: str | Path, data: bytes | None = None) -> Iterator[PillowImage.Image]:
    """A file as Pillow opens it; whatever it says about it names the file."""
    from PIL import Image  # noqa: PLC0415  (not for --help)
    from PIL import UnidentifiedImageError  # noqa: PLC0415

    known = _FORMATS if data is None else _SENT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            file = path if data is None else io.BytesIO(data)
            with Image.open(file, formats=known) as image:
                if data is not None and image.width * image.height > _MOST_SENT:
                    msg = f"{path} is {image.width}x{image.height}; supported: {_MOST_SENT} pixels"
                    raise FileFormatError(msg)
                yield image
    except UnidentifiedImageError:
        msg = f"{path} is no image that can be read; supported: {', '.join(known)}"
        raise FileFormatError(msg) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        given = re.search(r"\d+ pixels", str(error))
        msg = f"{path} is too large an image: {given[0] if given else error}; supported: "
        msg += f"{Image.MAX_IMAGE_PIXELS}: make it smaller"
        raise FileFormatError(msg) from None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        msg = f"{path} cannot be read: {error.strerror}; check the path"
        raise UsageError(msg) from None
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on damaged files
        msg = f"{path} is a damaged image: {error}; get it again"
        raise FileFormatError(msg) from None


__all__ = [
    "METADATA_KEY",
    "Pixels",
    "check_png",
    "digest",
    "png",
    "read_image",
    "read_mask",
    "read_metadata",
    "resize",
    "transparent",
    "write_png",
]
