"""Images in files: what is read, what is written, and what is no image."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from propolis.errors import FileFormatError
from propolis.errors import UsageError
from propolis_workers.sd import images


PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
METADATA = {"prompt": "a \u00e9 \U0001f642\n'\"\\", "seed": 2**64 - 1, "loras": [], "eta": 0.1}


def test_round_trip(tmp_path):
    """Pixels and metadata come back; the same ones are the same bytes."""
    path = tmp_path / "a.png"
    images.write_png(path, PIXELS, METADATA)
    np.testing.assert_array_equal(images.read_image(path), PIXELS)
    assert METADATA == images.read_metadata(path)
    before = path.read_bytes()
    images.write_png(path, PIXELS, dict(reversed(METADATA.items())))
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())
    with Image.open(path) as other:
        assert "propolis" in other.text


def test_permissions(tmp_path):
    """A file is written as others are: readable for whom the umask says."""
    old = os.umask(0o027)
    try:
        images.write_png(tmp_path / "a.png", PIXELS)
    finally:
        os.umask(old)
    assert 0o640 == (tmp_path / "a.png").stat().st_mode & 0o777


@pytest.mark.parametrize("name", ["missing/a.png", "folder"])
def test_not_writable(tmp_path, name):
    """Where no file can be written, the message says so; nothing is left behind."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"cannot be written: (Is a directory|No such file)"):
        images.write_png(tmp_path / name, PIXELS)
    assert [tmp_path / "folder"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK", "I;16"])
def test_modes(tmp_path, mode):
    """Every kind of pixels becomes RGB."""
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 8)).save(path)
    assert ((8, 8, 3), np.uint8) == (images.read_image(path).shape, images.read_image(path).dtype)


@pytest.mark.parametrize("name", ["a.png", "a.pgm", "a.tiff"])
def test_sixteen_bits(tmp_path, name):
    """Greyscale of 16 bits is scaled to 8, not clipped to white; masks are split at half too."""
    values = np.array([[0, 257, 0x7FFF, 0x8000, 200 * 257 + 128, 0xFFFF]], np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    scaled = np.array([[0, 1, 127, 128, 200, 255]], np.uint8)
    np.testing.assert_array_equal(
        images.read_image(tmp_path / name), scaled[..., None].repeat(3, 2)
    )
    mask = np.array([[0, 0, 0, 255, 255, 255]], np.uint8)
    np.testing.assert_array_equal(images.read_mask(tmp_path / name), mask)


def test_sixteen_bits_with_transparency(tmp_path):
    """The one grey of 16 bits that a PNG calls transparent is white, and no mask."""
    values = np.array([[0, 1000, 0xFFFF]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png", transparency=1000)
    assert [0, 255, 255] == images.read_image(tmp_path / "a.png")[0, :, 0].tolist()
    with pytest.raises(FileFormatError, match="has transparency: flatten it"):
        images.read_mask(tmp_path / "a.png")


@pytest.mark.parametrize("read", [images.read_image, images.read_mask])
@pytest.mark.parametrize(
    ("values", "what"), [(np.float32([[0.5]]), "floats"), (np.int32([[-1, 70000]]), "-1 to 70000")]
)
def test_no_brightness(tmp_path, read, values, what):
    """Numbers of which nobody says what is white are refused."""
    Image.fromarray(values).save(tmp_path / "a.tiff")
    with pytest.raises(FileFormatError, match=f"a.tiff are {what}; supported: 8 or 16 bits"):
        read(tmp_path / "a.tiff")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_masks_in_the_alpha_channel(tmp_path, mode):
    """A mask that is partly transparent is refused: it may mean two things."""
    mask = Image.new("RGBA", (4, 4), "white")
    mask.putpixel((1, 2), (255, 255, 255, 0))
    mask.convert(mode).save(tmp_path / "m.png", **({"transparency": 0} if mode == "P" else {}))
    with pytest.raises(FileFormatError, match=r"white on black, and .*m\.png has transparency"):
        images.read_mask(tmp_path / "m.png")


def test_transparency(tmp_path):
    """What is transparent is white."""
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:2, :, 3] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = images.read_image(tmp_path / "a.png")
    assert (0, 255) == (found[:2].max(), found[2:].min())


def test_orientation(tmp_path):
    """A photo is turned as its camera says."""
    photo = Image.fromarray(PIXELS)
    exif = photo.getexif()
    exif[0x0112] = 6  # the camera was held upright
    photo.save(tmp_path / "a.jpg", exif=exif)
    assert (40, 24, 3) == images.read_image(tmp_path / "a.jpg").shape
    pixels = np.dstack([PIXELS, np.where(np.arange(24)[:, None] < 9, 255, 0).repeat(40, 1)])
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "a.png", exif=exif)
    found = images.transparent("a.png", (tmp_path / "a.png").read_bytes())
    assert found.shape == (40, 24)
    assert found[0].tolist() == [255] * 15 + [0] * 9


def test_mask(tmp_path):
    """A mask is black and white, split at half of the light; other kinds too."""
    Image.fromarray(np.array([[0, 127, 128, 255]], np.uint8)).save(tmp_path / "m.png")
    found = images.read_mask(tmp_path / "m.png")
    np.testing.assert_array_equal(found, np.array([[0, 0, 255, 255]], np.uint8))
    Image.new("RGBA", (3, 2), "white").save(tmp_path / "n.png")
    np.testing.assert_array_equal(images.read_mask(tmp_path / "n.png"), np.full((2, 3), 255))
    Image.fromarray(np.array([[0, 1]], np.uint8)).save(tmp_path / "o.png")
    with pytest.raises(FileFormatError, match=r"o\.png has no more than 1, which is nearly black"):
        images.read_mask(tmp_path / "o.png")


def test_resize():
    """Images are resized as Pillow's Lanczos does, masks stay black and white."""
    truth = np.asarray(Image.fromarray(PIXELS).resize((20, 16), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(images.resize(PIXELS, 20, 16), truth)
    assert images.resize(PIXELS, 40, 24) is PIXELS
    mask = np.where(PIXELS[..., 0] > 99, 255, 0).astype(np.uint8)
    assert {0, 255} == set(np.unique(images.resize(mask, 33, 17)))


def broken(path, kind):
    """A file that is no image, or a damaged one."""
    images.write_png(path, PIXELS)
    data = path.read_bytes()
    if kind == "cut":
        path.write_bytes(data[:-600])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("an image of a cat")
    elif kind == "chunk":
        path.write_bytes(data[:40] + bytes(100) + data[140:])
    return path


@pytest.mark.parametrize("read", [images.read_image, images.read_mask, images.read_metadata])
@pytest.mark.parametrize("kind", ["cut", "empty", "text", "chunk"])
def test_no_image(tmp_path, read, kind):
    """What is no image, or a damaged one, is named."""
    with pytest.raises(FileFormatError, match=r"a\.png is (no image|a damaged image)"):
        read(broken(tmp_path / "a.png", kind))


def test_missing(tmp_path):
    """A file that is not there, and a folder, are named."""
    for path in (tmp_path / "none.png", tmp_path):
        for read in (images.read_image, images.read_metadata, images.digest):
            with pytest.raises(UsageError, match=r"cannot be read: .*; check the path"):
                read(path)


def test_too_large(tmp_path, monkeypatch):
    """More pixels than Pillow takes are refused, not read."""
    images.write_png(tmp_path / "a.png", PIXELS)
    for limit in (700, 300):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        said = rf"a\.png is too large an image: 960 pixels; supported: {limit}: make it smaller$"
        with pytest.raises(FileFormatError, match=said):
            images.read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "has no metadata of Propolis"), ("{", "is not JSON"), ("[]", "is a list, not an obj")],
)
def test_bad_metadata(tmp_path, text, message):
    """An image of others, or one whose metadata was spoilt, is told apart."""
    info = PngInfo()
    if text is not None:
        info.add_itxt("propolis", text)
    Image.fromarray(PIXELS).save(tmp_path / "a.png", pnginfo=info)
    with pytest.raises(FileFormatError, match=message):
        images.read_metadata(tmp_path / "a.png")
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg")
    with pytest.raises(FileFormatError, match="has no metadata of Propolis"):
        images.read_metadata(tmp_path / "a.jpg")
