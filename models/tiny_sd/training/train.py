"""
Train the tiny Stable Diffusion model from nothing: tokenizer, VAE, text encoder and UNet.

    python train.py --work WORK --out MODEL

draws the scenes into WORK, trains each stage for its budget of seconds, and writes the model
in diffusers' layout to MODEL.  Every stage leaves its result in WORK; a second run with the same
WORK goes on from there, so `--stop-after` can cut the training into several runs.
`--smoke` runs all of it on a CPU in a minute, with networks too small to learn anything.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch
from data import CAPTIONS
from data import draw_scenes
from data import some_captions
from data import tokenizer_of
from evaluate import evaluate
from evaluate import grid
from evaluate import sample
from models import MINUSCULE
from models import Widths
from models import load_pipeline
from models import make_pipeline
from models import make_scheduler
from models import make_text_encoder
from models import make_unet
from models import make_vae
from prompts import KINDS
from prompts import prompts_of
from tokenizer_files import write_tokenizer
from torch.nn import functional


if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.pool import Pool

STARTED = time.monotonic()
LARGEST = 30_000_000  # bytes of an exported folder


@dataclass
class Options:
    """The command line."""

    work: Path
    out: Path
    warm_start: Path | None
    scenes: int
    seed: int
    processes: int
    vae_seconds: float
    vae_batch: int
    unet_seconds: float
    unet_batch: int
    learning_rate: float
    spent: float
    stop_after: float
    evaluate_every: float
    evaluate_count: int
    compile: bool
    smoke: bool
    device: str

    @property
    def widths(self) -> Widths:
        """Of the networks."""
        return MINUSCULE if self.smoke else Widths()


def parse() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of state between runs")
    parser.add_argument("--out", type=Path, required=True, help="where the model folder goes")
    parser.add_argument("--warm-start", type=Path, help="an exported folder to go on from")
    parser.add_argument("--scenes", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--vae-seconds", type=float, default=110)
    parser.add_argument("--vae-batch", type=int, default=256)
    parser.add_argument("--unet-seconds", type=float, default=840)
    parser.add_argument("--unet-batch", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--spent", type=float, default=0, help="UNet seconds before a warm start")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds of this run")
    parser.add_argument("--evaluate-every", type=float, default=200, help="seconds")
    parser.add_argument("--evaluate-count", type=int, default=512, help="prompts of each kind")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = Options(**vars(parser.parse_args()))
    if options.smoke:
        options.scenes, options.compile = 200, False
        options.vae_seconds, options.unet_seconds = 3, 10
        options.vae_batch = options.unet_batch = 4
        options.evaluate_every, options.evaluate_count = 8, 4
    return options


def say(**values: Any) -> None:
    """One line of JSON on the output."""
    print(json.dumps({"at": round(time.monotonic() - STARTED, 1), **values}), flush=True)


def prepare(options: Options) -> None:
    """The tokenizer and the drawn scenes."""
    tokenizer = options.work / "tokenizer"
    if not tokenizer.exists():
        write_tokenizer(some_captions(600 if options.smoke else 20_000, options.seed), tokenizer)
    done = options.work / "scenes.json"
    wanted = json.dumps({"scenes": options.scenes, "seed": options.seed})
    if not done.exists() or done.read_text() != wanted:
        draw_scenes(options.work, tokenizer, options.scenes, options.seed, options.processes)
        done.write_text(wanted)
        say(stage="scenes", count=options.scenes)


def autocast(options: Options) -> torch.autocast:
    """Bf16 products on a GPU."""
    return torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda")


def compiled(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """The function, compiled where that is asked for and works."""
    torch._dynamo.config.suppress_errors = True  # noqa: SLF001  # what cannot be compiled runs as it is
    return torch.compile(function) if options.compile else function


def pace(optimizer: torch.optim.Optimizer, peak: float, step: int, progress: float) -> None:
    """Warm up over 300 steps, then follow a cosine down to 2 % at the end of the budget."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1.0, (step + 1) / 300) * (0.02 + 0.98 * cosine)


def edges(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences of neighbouring pixels, across and down."""
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def train_vae(options: Options) -> None:
    """Stage 1: reconstruct images; absolute, squared and edge errors, a little KL."""
    images = np.load(options.work / "images.npy", mmap_mode="r")
    pixels = torch.from_numpy(np.array(images[:300_000])).to(options.device)
    vae = make_vae(options.widths).to(options.device, memory_format=torch.channels_last).train()
    encode, decode = compiled(vae._encode, options), compiled(vae._decode, options)  # noqa: SLF001
    optimizer = torch.optim.AdamW(vae.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.99))
    begun, step, elapsed = None, 0, 0.0
    while elapsed < options.vae_seconds:
        pace(optimizer, 1e-3, step, elapsed / options.vae_seconds)
        chosen = torch.randint(len(pixels), (options.vae_batch,), device=options.device)
        x = pixels[chosen].permute(0, 3, 1, 2).float() / 127.5 - 1
        with autocast(options):
            mean, logvar = encode(x).float().chunk(2, dim=1)
            logvar = logvar.clamp(-30, 20)
            z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
            y = decode(z, return_dict=False)[0].float()
        off = y - x
        rebuilt = off.abs().mean() + 2 * off.square().mean()
        rebuilt = rebuilt + sum(d.abs().mean() for d in edges(off))
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        loss = rebuilt + 2e-4 * kl
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            mse = off.square().mean().item()
            # Compiling is not counted: the clock starts after the first steps.
            begun = time.monotonic() if step <= 20 else begun
            elapsed = time.monotonic() - (begun or 0.0)
            if step % 500 == 0:
                psnr = round(10 * math.log10(4 / mse), 2)
                say(stage="vae", step=step, loss=round(loss.item(), 5), psnr=psnr)
        step += 1
    vae.eval()
    with torch.no_grad():
        x = pixels[:4096].permute(0, 3, 1, 2).float() / 127.5 - 1
        z = torch.cat([vae.encode(part).latent_dist.mean for part in x.split(512)])
        y = torch.cat([vae.decode(part).sample for part in z.split(512)])
        error = (y - x).square().mean().item()
    vae.register_to_config(scaling_factor=round(1 / z.std().item(), 5))
    psnr = round(10 * math.log10(4 / error), 2)
    means = [round(v, 3) for v in z.mean(dim=(0, 2, 3)).tolist()]
    say(
        stage="vae",
        done=True,
        steps=step,
        psnr=psnr,
        scaling_factor=vae.config.scaling_factor,
        latent_means=means,
    )
    vae.save_pretrained(options.work / "vae")


def encode_scenes(options: Options) -> None:
    """Write the latents of every scene, scaled to a deviation of 1, as bf16."""
    vae = make_vae(options.widths).from_pretrained(options.work / "vae").to(options.device).eval()
    images = np.load(options.work / "images.npy", mmap_mode="r")
    parts = []
    with torch.no_grad(), autocast(options):
        for first in range(0, len(images), 4096):
            x = torch.from_numpy(np.array(images[first : first + 4096])).to(options.device)
            x = x.permute(0, 3, 1, 2).float() / 127.5 - 1
            z = vae.encode(x).latent_dist.mean * vae.config.scaling_factor
            parts.append(z.to(torch.bfloat16))
    torch.save(torch.cat(parts).cpu(), options.work / "latents.pt")
    say(stage="latents", count=len(images))


class Denoiser(torch.nn.Module):
    """Text encoder and UNet, trained together."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        tokenizer = tokenizer_of(options.work / "tokenizer")
        if options.warm_start:
            pipeline = load_pipeline(options.warm_start, "cpu")
            self.text, self.unet = pipeline.text_encoder, pipeline.unet
        else:
            self.text = make_text_encoder(options.widths, tokenizer)
            self.unet = make_unet(options.widths)
        self.denoise = compiled(self.unet.forward, options)

    def forward(self, z: torch.Tensor, t: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The velocity that the UNet predicts."""
        context = self.text(input_ids=ids).last_hidden_state
        velocity: torch.Tensor = self.denoise(z, t, context, return_dict=False)[0]
        return velocity


class UNetStage:
    """Stage 2: text encoder and UNet, with a moving average of their weights."""

    def __init__(self, options: Options, pool: Pool) -> None:
        self.options, self.pool = options, pool
        self.model = Denoiser(options).to(options.device, memory_format=torch.channels_last)
        self.average = Denoiser(options).to(options.device, memory_format=torch.channels_last)
        self.average.load_state_dict(self.model.state_dict())
        self.average.eval().requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), weight_decay=0.01, fused=options.device == "cuda"
        )
        self.step, self.spent = 0, options.spent
        self.checkpoint = options.work / "unet.pt"
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, map_location=options.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.average.load_state_dict(state["average"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.spent = state["step"], state["spent"]

    def save(self) -> None:
        """Leave everything that going on needs."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "spent": self.spent,
        }
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)

    def pipeline(self):  # noqa: ANN201  # diffusers' class
        """The averaged weights as a pipeline."""
        options = self.options
        vae = make_vae(options.widths).from_pretrained(options.work / "vae").to(options.device)
        tokenizer = tokenizer_of(options.work / "tokenizer")
        return make_pipeline(vae.eval(), self.average.text, tokenizer, self.average.unet)

    def evaluate(self) -> None:
        """Print how many prompts the averaged weights obey."""
        options = self.options
        result = evaluate(self.pipeline(), count=options.evaluate_count, pool=self.pool)
        say(stage="evaluate", step=self.step, **result)

    def train(self) -> bool:
        """Train until the budget or this run's time is spent; whether the budget is."""
        options = self.options
        device = options.device
        latents = torch.load(options.work / "latents.pt", weights_only=True).to(device)
        tokens = torch.from_numpy(np.load(options.work / "tokens.npy")).to(device)
        tokenizer = tokenizer_of(options.work / "tokenizer")
        nothing = tokenizer("", padding="max_length", max_length=tokens.shape[-1])["input_ids"]
        empty = torch.tensor(nothing, device=device)
        alphas = make_scheduler().alphas_cumprod.to(device)
        parameters = list(self.model.parameters())
        averages = list(self.average.parameters())
        network = self.model.train()
        clock, first, budget = time.monotonic(), self.step, options.unet_seconds
        clock_printed = clock
        evaluated, losses, printed = clock, [], self.step
        while self.spent < budget and clock - STARTED < options.stop_after:
            pace(self.optimizer, options.learning_rate, self.step, self.spent / budget)
            chosen = torch.randint(len(latents), (options.unet_batch,), device=device)
            ids = tokens[chosen, torch.randint(CAPTIONS, chosen.shape, device=device)].long()
            dropped = torch.rand(len(ids), 1, device=device) < 0.1
            ids = torch.where(dropped, empty, ids)
            z = latents[chosen].float()
            noise = torch.randn_like(z)
            t = torch.randint(len(alphas), chosen.shape, device=device)
            signal = alphas[t].sqrt().view(-1, 1, 1, 1)
            dark = (1 - alphas[t]).sqrt().view(-1, 1, 1, 1)
            with autocast(options):
                velocity = network(signal * z + dark * noise, t, ids)
            loss = functional.mse_loss(velocity.float(), signal * noise - dark * z)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            self.optimizer.step()
            decay = min(0.9995, (1 + self.step) / (10 + self.step))
            with torch.no_grad():
                torch._foreach_lerp_(averages, parameters, 1 - decay)
            losses.append(loss.detach())
            self.step += 1
            if (self.step - first) % 10 == 0:
                mean = torch.stack(losses).mean().item()  # waits for the device
                now = time.monotonic()
                # The first steps of a run compile; they are not counted.
                self.spent += now - clock if self.step - first > 20 else 0.0
                if (self.step - first) % 500 == 0:
                    per_second = round((self.step - printed) / (now - clock_printed), 1)
                    say(
                        stage="unet",
                        step=self.step,
                        loss=round(mean, 5),
                        spent=round(self.spent),
                        steps_per_second=per_second,
                    )
                    losses.clear()
                if self.step - first == 20 or (self.step - first) % 500 == 0:
                    clock_printed, printed = now, self.step
                if now - evaluated > options.evaluate_every and self.spent < budget:
                    self.evaluate()
                    self.save()
                    evaluated = clock_printed = time.monotonic()
                    printed = self.step
                clock = time.monotonic()
        self.save()
        return self.spent >= budget


def export(stage: UNetStage) -> None:
    """
    Write the averaged weights in f16.

    Raises:
        RuntimeError: the folder is larger than LARGEST.
    """
    out = stage.options.out
    stage.pipeline().to(torch.float16).save_pretrained(out)
    stage.average.float()
    for file in (stage.options.work / "tokenizer").iterdir():  # what transformers rewrites or drops
        (out / "tokenizer" / file.name).write_bytes(file.read_bytes())
    vae = out / "vae/config.json"  # names the folder that the VAE was read from
    config = {k: v for k, v in json.loads(vae.read_text()).items() if k != "_name_or_path"}
    vae.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    sizes = {str(f.relative_to(out)): f.stat().st_size for f in out.rglob("*") if f.is_file()}
    say(stage="export", bytes=sum(sizes.values()), files=sizes)
    if sum(sizes.values()) > LARGEST:
        msg = f"the exported folder has {sum(sizes.values())} bytes, more than {LARGEST}"
        raise RuntimeError(msg)


def final_figures(options: Options, pool: Pool) -> None:
    """Evaluate the exported folder with several schedulers and guidances; draw a grid."""
    pipeline = load_pipeline(options.out, options.device)
    results: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = [
        {"scheduler": "ddim", "guidance": 4.0, "steps": 20},
        {"scheduler": "ddim", "guidance": 2.5, "steps": 20},
        {"scheduler": "ddim", "guidance": 7.5, "steps": 20},
        {"scheduler": "dpmpp_2m", "guidance": 4.0, "steps": 20},
        {"scheduler": "euler", "guidance": 4.0, "steps": 20},
        {"scheduler": "unipc", "guidance": 4.0, "steps": 10},
        {"scheduler": "ddim", "guidance": 4.0, "steps": 50},
    ]
    for setting in settings[:1] if options.smoke else settings:
        result = evaluate(pipeline, count=options.evaluate_count, pool=pool, **setting)
        results.append({**setting, "per cent": result})
        say(stage="figures", **results[-1])
    (options.out.parent / "figures.json").write_text(json.dumps(results, indent=2) + "\n")
    for kind in KINDS:
        texts = [text for text, _ in prompts_of(kind, 48, 7)]
        images = sample(pipeline, texts, seed=7, steps=20, guidance=4.0, scheduler="ddim")
        grid(images).save(options.out.parent / f"samples-{kind.replace(' ', '-')}.png")
        (options.out.parent / f"samples-{kind.replace(' ', '-')}.txt").write_text("\n".join(texts))


def main() -> None:
    """Run what is not yet done."""
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    # Made before anything touches the device: a process must not be copied with one in use.
    pool = multiprocessing.get_context("fork").Pool(options.processes)
    if options.smoke:
        torch.set_num_threads(1)
    torch.manual_seed(options.seed + (0 if not (options.work / "unet.pt").exists() else 1))
    torch.set_float32_matmul_precision("high")
    if options.warm_start:  # its tokenizer and VAE, so that the latents are the same
        for part in ("tokenizer", "vae"):
            target = options.work / part
            target.mkdir(exist_ok=True)
            for file in (options.warm_start / part).iterdir():
                (target / file.name).write_bytes(file.read_bytes())
    prepare(options)
    if not (options.work / "vae").exists():
        train_vae(options)
    if not (options.work / "latents.pt").exists():
        encode_scenes(options)
    stage = UNetStage(options, pool)
    finished = stage.train()
    export(stage)
    if finished:
        final_figures(options, pool)
    elif not math.isinf(options.stop_after):
        stage.evaluate()
    pool.terminate()
    say(stage="unet", finished=finished, steps=stage.step, spent=round(stage.spent))


if __name__ == "__main__":
    main()
