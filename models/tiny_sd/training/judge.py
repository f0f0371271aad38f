"""
Draw held-out prompts with Propolis on the CPU and let the checker judge the images.

    python judge.py --prompts 100

prints figures as JSON, with every prompt that was not obeyed and the seed that shows it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from checker import judge
from prompts import KINDS
from prompts import percentages
from prompts import prompts_of

from propolis import Runtime
from propolis.config import Config
from propolis_workers.sd import GenerateParams
from propolis_workers.sd import StableDiffusion


if TYPE_CHECKING:
    from checker import Verdict


def judge_kind(
    model: StableDiffusion, kind: str, options: argparse.Namespace
) -> tuple[list[Verdict], list[dict[str, object]]]:
    """The verdicts on prompts of one kind, and what was not obeyed."""
    verdicts, missed = [], []
    for number, (prompt, claims) in enumerate(prompts_of(kind, options.prompts, options.seed)):
        params = GenerateParams(
            prompt=prompt,
            seed=options.seed + number,
            steps=options.steps,
            guidance=options.guidance,
            scheduler=options.scheduler,
            spacing=options.spacing,
            sigmas=options.sigmas,
        )
        verdict = judge(claims, model.generate(params)[0])
        verdicts.append(verdict)
        if not verdict.obeyed:
            wrong = [name for name, holds in asdict(verdict).items() if not holds]
            missed.append({"prompt": prompt, "seed": params.seed, "wrong": wrong})
        if sys.stderr.isatty():
            obeyed = sum(v.obeyed for v in verdicts)
            print(f"\r{kind}: {obeyed} of {len(verdicts)} ", end="", file=sys.stderr, flush=True)
    return verdicts, missed


def main() -> None:
    """Judge a model folder, or the packaged model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="the packaged model when left out")
    parser.add_argument("--prompts", type=int, default=100, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2], metavar="KIND")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--scheduler", help="the model's own when left out")
    parser.add_argument("--spacing", help="of timesteps; the model's own when left out")
    parser.add_argument("--sigmas", help="normal, karras or exponential")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0 for all cores")
    options = parser.parse_args()
    runtime = Runtime.start(Config.load(device="cpu", threads=options.threads))
    model = StableDiffusion.load(options.folder, runtime=runtime)
    begun = time.perf_counter()
    result: dict[str, object] = {key: value for key, value in vars(options).items() if value}
    for kind in options.kinds:
        verdicts, missed = judge_kind(model, kind, options)
        result[kind] = {"per cent": percentages(verdicts), "missed": missed}
    images = options.prompts * len(options.kinds)
    result["seconds per image"] = round((time.perf_counter() - begun) / images, 2)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
