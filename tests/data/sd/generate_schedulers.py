"""
Write ``schedulers.npz``: what the schedulers of Hugging Face diffusers do.

``python generate_schedulers.py`` beside a torch and diffusers; the tests import ``CASES`` and,
where diffusers is installed, run it live.  Tables of training are f32 as diffusers makes them;
everything after them is in f64, so that what is compared are formulas and not roundings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from typing import NamedTuple
from unittest import mock

import numpy as np


SHAPE = (2, 1, 2, 2)
FILE = Path(__file__).with_name("schedulers.npz")
CLASSES = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lcm": "LCMScheduler",
}
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
# As the published folders have them, keys that mean nothing here included.
PUBLISHED: dict[str, dict[str, Any]] = {
    "sd15": {
        "_class_name": "PNDMScheduler",
        "_diffusers_version": "0.6.0",
        **BETAS,
        "clip_sample": False,
        "num_train_timesteps": 1000,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "trained_betas": None,
    },
    "sd21": {
        "_class_name": "DDIMScheduler",
        "_diffusers_version": "0.8.0",
        **BETAS,
        "clip_sample": False,
        "num_train_timesteps": 1000,
        "prediction_type": "v_prediction",
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "trained_betas": None,
    },
    "sdxl": {
        "_class_name": "EulerDiscreteScheduler",
        "_diffusers_version": "0.19.0.dev0",
        **BETAS,
        "clip_sample": False,
        "interpolation_type": "linear",
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        "sample_max_value": 1.0,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "timestep_spacing": "leading",
        "trained_betas": None,
        "use_karras_sigmas": False,
    },
    "turbo": {
        "_class_name": "EulerAncestralDiscreteScheduler",
        "_diffusers_version": "0.24.0.dev0",
        **BETAS,
        "clip_sample": False,
        "interpolation_type": "linear",
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        "sample_max_value": 1.0,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
        "timestep_spacing": "trailing",
        "trained_betas": None,
    },
    "lcm": {
        "_class_name": "LCMScheduler",
        "_diffusers_version": "0.22.0.dev0",
        **BETAS,
        "clip_sample": False,
        "clip_sample_range": 1.0,
        "dynamic_thresholding_ratio": 0.995,
        "num_train_timesteps": 1000,
        "original_inference_steps": 50,
        "prediction_type": "epsilon",
        "rescale_betas_zero_snr": False,
        "sample_max_value": 1.0,
        "set_alpha_to_one": True,
        "steps_offset": 1,
        "thresholding": False,
        "timestep_scaling": 10.0,
        "timestep_spacing": "leading",
        "trained_betas": None,
    },
}


class Case(NamedTuple):
    """One scheduler, its config, and a run of it."""

    name: str
    config: dict[str, Any]
    steps: int
    strength: float = 1.0

    @property
    def label(self) -> str:
        """Name the case in messages."""
        told = {k: v for k, v in self.config.items() if k not in BETAS}
        return f"{self.name} {told} steps={self.steps} strength={self.strength}"


def cases() -> list[Case]:
    """Everything that is compared."""
    found = []
    for name in CLASSES:
        # diffusers has no ancestral step for models that predict the sample.
        kinds = ["epsilon", "v_prediction", "sample"][: 2 if name == "euler_ancestral" else 3]
        sigmas: list[dict[str, Any]] = [{}]
        if name in ("euler", "dpmpp_2m", "unipc"):
            sigmas += [{"use_karras_sigmas": True}, {"use_exponential_sigmas": True}]
        spacings = ["leading"] if name == "lcm" else ["leading", "trailing", "linspace"]
        for spacing in spacings:
            for respaced in sigmas:
                for kind in kinds:
                    config = {**BETAS, "timestep_spacing": spacing, "prediction_type": kind}
                    config |= {"steps_offset": 1, **respaced}
                    if name in ("ddim", "ddpm", "lcm"):
                        config["clip_sample"] = False
                    found += [Case(name, config, steps) for steps in (1, 2, 10, 50)]
    for name in CLASSES:
        for config in PUBLISHED.values():
            found += [Case(name, {"clip_sample": False, **config}, 10)]
            found += [Case(name, {"clip_sample": False, **config}, 20, 0.55)]
    return found + list(_variants())


def _variants() -> list[Case]:
    """The settings that the grid leaves alone."""
    base = {**BETAS, "steps_offset": 1, "clip_sample": False}
    velocity = {**base, "prediction_type": "v_prediction"}
    zero_snr = {**velocity, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    clipped = {**base, "clip_sample": True, "clip_sample_range": 0.75}
    dynamic = {**base, "thresholding": True, "sample_max_value": 1.5}
    dynamic["dynamic_thresholding_ratio"] = 0.8
    karras = {**base, "use_karras_sigmas": True}
    wanted: list[tuple[str, dict[str, Any]]] = [
        *((name, zero_snr) for name in CLASSES),
        *((name, {**base, "beta_schedule": "squaredcos_cap_v2"}) for name in CLASSES),
        *((name, {**base, "beta_schedule": "linear"}) for name in CLASSES),
        *((name, {**base, "trained_betas": [0.001 + 2e-5 * i for i in range(400)],
                  "num_train_timesteps": 400}) for name in CLASSES),
        *((name, clipped) for name in ("ddim", "ddpm", "lcm")),
        *((name, dynamic) for name in ("ddim", "ddpm", "lcm", "dpmpp_2m", "unipc")),
        *(("ddim", {**base, "eta": eta, "set_alpha_to_one": False}) for eta in (0.0, 0.3, 1.0)),
        ("ddim", {**base, "eta": 1.0, "timestep_spacing": "trailing"}),
        *(("ddpm", {**base, "variance_type": kind}) for kind in ("fixed_small_log", "fixed_large")),
        *(("ddpm", {**base, "variance_type": "fixed_large", "timestep_spacing": "trailing"})
          for _ in range(1)),
        *((name, {**base, "final_sigmas_type": "sigma_min"})
          for name in ("euler", "dpmpp_2m", "unipc")),
        *((name, {**karras, "final_sigmas_type": "sigma_min"})
          for name in ("euler", "dpmpp_2m", "unipc")),
        *((name, {**karras, "sigma_min": 0.05, "sigma_max": 9.0}) for name in ("euler", "unipc")),
        ("euler", {**velocity, "timestep_type": "continuous"}),
        ("euler", {**velocity, "timestep_type": "continuous", "use_karras_sigmas": True}),
        ("dpmpp_2m", {**base, "solver_type": "heun"}),
        ("dpmpp_2m", {**karras, "solver_type": "heun", "lower_order_final": False,
                      "final_sigmas_type": "sigma_min", "use_karras_sigmas": False}),
        ("dpmpp_2m", {**base, "solver_order": 1}),
        ("dpmpp_2m", {**base, "lower_order_final": False}),
        ("dpmpp_2m", {**base, "euler_at_final": True, "final_sigmas_type": "sigma_min"}),
        ("dpmpp_2m", {**base, "lambda_min_clipped": -2.0}),
        ("dpmpp_2m", {**base, "lambda_min_clipped": -2.0, "timestep_spacing": "trailing"}),
        ("dpmpp_2m", {**karras, "beta_schedule": "squaredcos_cap_v2"}),
        ("unipc", {**base, "solver_type": "bh1", "final_sigmas_type": "sigma_min"}),
        ("unipc", {**base, "solver_order": 1}),
        ("unipc", {**base, "disable_corrector": [0, 1]}),
        ("unipc", {**base, "predict_x0": False, "final_sigmas_type": "sigma_min"}),
        ("unipc", {**velocity, "predict_x0": False, "final_sigmas_type": "sigma_min",
                   "solver_type": "bh1"}),
        ("unipc", {**base, "lower_order_final": False, "final_sigmas_type": "sigma_min"}),
        ("lcm", {**base, "original_inference_steps": 100, "timestep_scaling": 5.0}),
    ]  # fmt: skip
    return [Case(name, config, steps) for name, config in wanted for steps in (10, 20)]


CASES = cases()


class Run(NamedTuple):
    """
    What a run of n steps shows.

    Attributes:
        timesteps: (n,).
        sigmas: (n + 1,), or none where diffusers has none.
        init_noise_sigma: a number.
        samples: before each step and after the last; (n + 1, *shape).
        noised: the first draw added to the first output, at each step; (n, *shape).
    """

    timesteps: np.ndarray
    sigmas: np.ndarray
    init_noise_sigma: float
    samples: np.ndarray
    noised: np.ndarray


def draws(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw what models give and fresh noise; (51, *shape) f32 each, seeded."""
    random = np.random.default_rng(seed)
    outputs, noise = random.standard_normal((2, 51, *shape)).astype(np.float32)
    return outputs, noise


def model(output: Any, scaled: Any) -> Any:
    """Answer as a model whose output depends on its input, so that errors would spread."""
    return 0.75 * output + 0.25 * scaled


def run(case: Case, outputs: np.ndarray, noise: np.ndarray, *, double: bool = True) -> Run:
    """Run a scheduler of diffusers; ``double`` as in the module's text."""
    import diffusers
    import torch

    dtype = torch.float64 if double else torch.float32
    outputs, noise = (torch.from_numpy(a).to(dtype) for a in (outputs, noise))
    scheduler = getattr(diffusers, CLASSES[case.name]).from_config(case.config)
    eta = {"eta": case.config["eta"]} if "eta" in case.config else {}
    scheduler.set_timesteps(case.steps)
    start = case.steps - min(int(case.steps * case.strength), case.steps)
    timesteps = scheduler.timesteps[start:]
    has_sigmas = hasattr(scheduler, "sigmas")
    sigmas = scheduler.sigmas[start:].numpy() if has_sigmas else np.zeros(0)
    if double:
        for table in ("alphas_cumprod", "final_alpha_cumprod", "sigmas", "one"):
            if hasattr(scheduler, table):
                setattr(scheduler, table, getattr(scheduler, table).double())
    first = float(scheduler.init_noise_sigma)
    noised = []
    for i, timestep in enumerate(timesteps):
        if has_sigmas:
            scheduler.set_begin_index(start + i)
        noised.append(scheduler.add_noise(outputs[-1], noise[-1], timestep[None]))
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(start)
    sample = noised[0] if case.strength < 1 else noise[-1] * first
    samples = [sample]
    for i, timestep in enumerate(timesteps):
        scaled = scheduler.scale_model_input(sample, timestep)
        fresh = mock.Mock(return_value=noise[i])
        fresh = mock.Mock(return_value=noise[i])
        with mock.patch(f"{type(scheduler).__module__}.randn_tensor", fresh, create=True):
            stepped = scheduler.step(model(outputs[i], scaled), timestep, sample, **eta)
        sample = stepped.prev_sample
        samples.append(sample)
    return Run(
        timesteps.numpy(),
        sigmas,
        first,
        torch.stack(samples).numpy(),
        torch.stack(noised).numpy(),
    )


def main() -> None:
    """Write the file."""
    outputs, noise = draws()
    runs = [run(case, outputs, noise) for case in CASES]
    fields = {
        name: np.concatenate([np.ravel(getattr(r, name)) for r in runs]) for name in Run._fields
    }
    for name in ("samples", "noised", "sigmas"):
        fields[name] = fields[name].astype(np.float32)
    lengths = [[np.size(field) for field in r] for r in runs]
    described = json.dumps([case._asdict() for case in CASES]).encode()
    np.savez_compressed(
        FILE,
        cases=np.frombuffer(described, np.uint8),
        lengths=np.array(lengths, np.int32),
        outputs=outputs,
        noise=noise,
        **fields,
    )


if __name__ == "__main__":
    main()
