"""
Draw held-out prompts with diffusers and let the checker judge the images.

Run as `python evaluate.py FOLDER`; prints figures as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

import numpy as np
import torch
from checker import judge
from diffusers import DDIMScheduler
from diffusers import DPMSolverMultistepScheduler
from diffusers import EulerDiscreteScheduler
from diffusers import UniPCMultistepScheduler
from models import load_pipeline
from PIL import Image
from prompts import KINDS
from prompts import percentages
from prompts import prompts_of


if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from captions import Claims
    from diffusers import StableDiffusionPipeline
    from numpy.typing import NDArray

SCHEDULERS: Final = {
    "ddim": DDIMScheduler,
    "dpmpp_2m": DPMSolverMultistepScheduler,
    "euler": EulerDiscreteScheduler,
    "unipc": UniPCMultistepScheduler,
}


def sample(
    pipeline: StableDiffusionPipeline,
    prompts: list[str],
    *,
    steps: int,
    guidance: float,
    scheduler: str,
    seed: int,
    batch: int = 256,
) -> NDArray[np.uint8]:
    """Images (n, 64, 64, 3) of prompts, the same for the same seed and batch."""
    pipeline.scheduler = SCHEDULERS[scheduler].from_config(pipeline.scheduler.config)
    generator = torch.Generator("cpu").manual_seed(seed)
    images = [
        pipeline(
            prompts[first : first + batch],
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generator,
            output_type="np",
        ).images
        for first in range(0, len(prompts), batch)
    ]
    return np.rint(np.concatenate(images) * 255).astype(np.uint8)


def figures(claims: list[Claims], images: NDArray[np.uint8], pool: Pool | None) -> dict[str, float]:
    """Per cent of the images that obey, in all and by each claim."""
    jobs = list(zip(claims, images, strict=True))
    return percentages(pool.starmap(judge, jobs, 8) if pool else [judge(*job) for job in jobs])


def evaluate(
    pipeline: StableDiffusionPipeline,
    *,
    count: int,
    pool: Pool | None = None,
    steps: int = 20,
    guidance: float = 4.0,
    scheduler: str = "ddim",
    kinds: tuple[str, ...] = KINDS,
    seed: int = 1,
) -> dict[str, dict[str, float]]:
    """Figures of each kind of prompt."""
    result = {}
    for kind in kinds:
        prompts = prompts_of(kind, count, seed)
        images = sample(
            pipeline,
            [text for text, _ in prompts],
            steps=steps,
            guidance=guidance,
            scheduler=scheduler,
            seed=seed,
        )
        result[kind] = figures([claims for _, claims in prompts], images, pool)
    return result


def grid(images: NDArray[np.uint8], columns: int = 12, zoom: int = 2) -> Image.Image:
    """Images side by side, with gaps."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=70)
    rows = [
        np.concatenate(list(padded[first : first + columns]), axis=1)
        for first in range(0, len(padded) - columns + 1, columns)
    ]
    picture = Image.fromarray(np.concatenate(rows))
    return picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)


def main() -> None:
    """Evaluate a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200, help="prompts of each kind")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--scheduler", choices=list(SCHEDULERS), default="ddim")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--grid", type=Path, help="write a grid of samples to this PNG")
    options = parser.parse_args()
    pipeline = load_pipeline(options.folder, options.device)
    settings = {
        "steps": options.steps,
        "guidance": options.guidance,
        "scheduler": options.scheduler,
    }
    result = evaluate(pipeline, count=options.count, **settings)
    print(json.dumps({**settings, "count": options.count, "per cent": result}, indent=2))
    if options.grid:
        texts = [text for text, _ in prompts_of("new couple", 48, 7)]
        grid(sample(pipeline, texts, seed=7, **settings)).save(options.grid)


if __name__ == "__main__":
    main()
