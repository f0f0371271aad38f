"""Draw the training scenes with many processes into arrays on the disk."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING
from typing import Final

import numpy as np
from captions import random_claims
from captions import say
from scenes import draw
from scenes import training_scene
from shapes import SIZE
from tokenizer_files import LENGTH


if TYPE_CHECKING:
    from pathlib import Path

CAPTIONS: Final = 4  # captions of a scene
CHUNK: Final = 1000  # scenes that a process draws at a time


def some_captions(count: int, seed: int) -> list[str]:
    """Captions to train the tokenizer on."""
    rng = np.random.default_rng(seed)
    return [say(random_claims(training_scene(rng), rng), rng) for _ in range(count)]


def draw_scenes(
    folder: Path, tokenizer_folder: Path, count: int, seed: int, processes: int
) -> None:
    """
    Write images.npy (count, 64, 64, 3) u8 and tokens.npy (count, CAPTIONS, LENGTH) i16.

    The same seed draws the same scenes, however many processes there are.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shapes = {"images": ((count, SIZE, SIZE, 3), np.uint8)}
    shapes["tokens"] = ((count, CAPTIONS, LENGTH), np.int16)
    for name, (shape, dtype) in shapes.items():
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape).flush()
    jobs = [
        (folder, tokenizer_folder, first, min(CHUNK, count - first), seed)
        for first in range(0, count, CHUNK)
    ]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for _ in pool.imap_unordered(_draw_chunk, jobs):
            pass


def _draw_chunk(job: tuple[Path, Path, int, int, int]) -> None:
    folder, tokenizer_folder, first, count, seed = job
    rng = np.random.default_rng([seed, first])
    images = np.lib.format.open_memmap(folder / "images.npy", "r+")
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", "r+")
    captions = []
    for index in range(first, first + count):
        scene = training_scene(rng)
        images[index] = draw(scene)
        captions += [say(random_claims(scene, rng), rng) for _ in range(CAPTIONS)]
    ids = tokenizer_of(tokenizer_folder)(
        captions, padding="max_length", max_length=LENGTH, truncation=True
    )
    tokens[first : first + count] = np.reshape(ids["input_ids"], (count, CAPTIONS, LENGTH))


_tokenizers: dict[Path, object] = {}


def tokenizer_of(folder: Path):  # noqa: ANN201  # transformers' class, imported late
    """The folder's CLIPTokenizer, loaded once a process."""
    from transformers import CLIPTokenizer  # noqa: PLC0415  # slow to import

    if folder not in _tokenizers:
        _tokenizers[folder] = CLIPTokenizer.from_pretrained(folder)
    return _tokenizers[folder]
