"""What a run gives: images, and what each was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from typing import TYPE_CHECKING
from typing import Any
from typing import overload

from propolis import __version__
from propolis_workers.arguments import expect_path
from propolis_workers.sd.images import check_png
from propolis_workers.sd.images import write_png


if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from propolis_workers.sd.images import Pixels
    from propolis_workers.sd.params import GenerateParams


@dataclass(frozen=True)
class Images(Sequence["Pixels"]):
    """
    The images of one run, u8 (height, width, 3) each.

    Attributes:
        pixels: the images.
        latents: what they were decoded from, (b, c, h, w), f32: what the last step gave.
        params: what they were drawn from, with nothing left open.
        source: by what: ``model`` (its folder; None for the packaged one), ``device``,
            ``dtype``, ``loras``.
        cut: what did not fit into the text encoder, by ``prompt`` and ``negative``.
        notes: what else went another way than one might think, in sentences.
        seconds: how long it took: ``text``, ``image`` (to start from), ``steps``, ``decode``.
    """

    pixels: list[Pixels]
    latents: np.ndarray
    params: GenerateParams
    source: dict[str, Any]
    cut: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @overload
    def __getitem__(self, index: int) -> Pixels: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Pixels]: ...

    def __getitem__(self, index: int | slice) -> Pixels | Sequence[Pixels]:
        return self.pixels[index]

    def __len__(self) -> int:
        return len(self.pixels)

    def metadata(self, index: int = 0) -> dict[str, Any]:
        """
        What reproduces an image, for its file.

        Of the image and the mask that it was drawn from, if any, it says nothing: who read
        them knows their names.
        """
        given = {f.name: getattr(self.params, f.name) for f in fields(self.params)}
        kept = {k: v for k, v in given.items() if k not in ("image", "mask") and v is not None}
        place = {"index": index} if len(self) > 1 else {}
        return {"propolis": __version__, "task": self.params.task, **kept, **place, **self.source}

    def save(self, path: str | Path) -> list[Path]:
        """
        Write PNG files: ``path``, or where there are several, ``path`` with ``-1``, ``-2`` ...

        Returns:
            the files.

        Raises:
            ArgumentTypeError: it is no path.
            UsageError: one cannot be written, or the name is not that of a PNG.
        """
        path = expect_path("path", path)
        check_png(path)
        paths = numbered(path, len(self))
        for index, one in enumerate(paths):
            write_png(one, self[index], self.metadata(index))
        return paths


def numbered(path: Path, count: int) -> list[Path]:
    """Names for so many files: the path itself for one."""
    if count == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{n}{path.suffix}") for n in range(1, count + 1)]


__all__ = ["Images", "numbered"]
