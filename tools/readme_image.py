"""
Draw the image of the README with the packaged model; `make readme-image` runs it.

The prompts stand beside the image in the README, which a test compares with these.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import numpy as np
from PIL import Image

from propolis import Runtime
from propolis.config import Config
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import StableDiffusion


if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

FILE: Final = Path(__file__).parents[1] / "docs/images/tiny-sd.png"
SEED: Final = 1
STEPS: Final = 20
GUIDANCE: Final = 4.0
# Training saw neither green hearts nor red stars.
PROMPTS: Final = (
    "a red circle to the left of a blue square on a white background",
    "a yellow cross above a purple ring on a black background",
    "a large green heart in the centre on a pink background",
    "a small red star in the top right corner, grey background",
)
ZOOM: Final = 3
GAP: Final = 8  # pixels of white between two images


def draw(prompts: Iterable[str] = PROMPTS) -> list[Pixels]:
    """An image (64, 64, 3) for each prompt, with the packaged model."""
    # One thread: how a product is split into more shows in the last bits.
    model = StableDiffusion.load(runtime=Runtime.start(Config.load(device="cpu", threads=1)))
    common = {"seed": SEED, "steps": STEPS, "guidance": GUIDANCE}
    return [model.generate(GenerateParams(prompt=prompt, **common))[0] for prompt in prompts]


def row(images: Iterable[Pixels]) -> Pixels:
    """Enlarged images side by side."""
    gaps = ((0, 0), (0, GAP), (0, 0))
    large = [image.repeat(ZOOM, 0).repeat(ZOOM, 1) for image in images]
    return np.concatenate([np.pad(i, gaps, constant_values=255) for i in large], 1)[:, :-GAP]


def main() -> None:
    """Draw, write the file and say where it is."""
    FILE.parent.mkdir(exist_ok=True)
    Image.fromarray(row(draw())).save(FILE, optimize=True)
    print(FILE)


if __name__ == "__main__":
    main()
