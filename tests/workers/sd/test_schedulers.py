"""Schedulers against those of diffusers: a file of what they did, and live."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from propolis import Tensor
from propolis_workers.sd.schedulers import SCHEDULERS
from propolis_workers.sd.schedulers import make_scheduler


DATA = Path(__file__).parents[2] / "data" / "sd"
SPEC = importlib.util.spec_from_file_location(
    "generate_schedulers", DATA / "generate_schedulers.py"
)
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)

# Of the largest value that the run has had so far.
STEP = 1e-6
# Roundings of f32 add up over a run.
WHOLE_RUN = {1: 1e-6, 2: 1e-6, 10: 1e-6, 20: 2e-6, 50: 2e-6}
# Solving for the noise divides by the signal, 0.07 at the start: terms cancel.
SOLVES_FOR_NOISE = 4.0
# diffusers in f32 is itself as far as this from diffusers in f64.
THEIR_ROUNDING = 5e-6

oracle_test = [
    pytest.mark.oracle,
    # Theirs, not ours: what they import warns of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def golden() -> list:
    """Every case with its run, from the file."""
    with np.load(generate.FILE) as file:
        fields = {name: file[name] for name in generate.Run._fields}
        lengths, outputs, noise = file["lengths"], file["outputs"], file["noise"]
        stored = json.loads(file["cases"].tobytes())
    assert json.loads(json.dumps([case._asdict() for case in generate.CASES])) == stored
    ends = np.cumsum(lengths, axis=0)
    found = []
    for case, end, length in zip(generate.CASES, ends, lengths, strict=True):
        run = {
            name: fields[name][e - n : e]
            for name, e, n in zip(generate.Run._fields, end, length, strict=True)
        }
        for name in ("samples", "noised"):
            run[name] = run[name].reshape(-1, *generate.SHAPE)
        run["init_noise_sigma"] = float(run["init_noise_sigma"][0])
        found.append((case, generate.Run(**run)))
    return found, outputs, noise


@pytest.fixture(scope="module")
def recorded():
    """Every case with its run, from the file."""
    return golden()


@pytest.fixture(scope="module")
def oracle(oracles):
    """Torch and diffusers, in one thread and quiet."""
    import diffusers
    import torch

    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()


def plan_of(case):
    """Return our plan of a case."""
    return make_scheduler(case.name, case.config).plan(case.steps, case.strength)


def check(case, run, outputs, noise, *, step=STEP, whole=None):
    """Compare everything that a run shows; values are told with the case and the step."""
    plan = plan_of(case)
    whole = whole or WHOLE_RUN[case.steps]
    if case.config.get("predict_x0") is False:
        step, whole = step * SOLVES_FOR_NOISE, whole * SOLVES_FOR_NOISE
    assert len(run.timesteps) == len(plan), case.label
    if run.timesteps.dtype.kind == "i" or (run.timesteps == run.timesteps.round()).all():
        assert (run.timesteps == plan.timesteps).all(), case.label
    else:  # between those of training, found by logarithms in f32
        np.testing.assert_allclose(plan.timesteps, run.timesteps, rtol=1e-6, err_msg=case.label)
    if run.sigmas.size:
        np.testing.assert_allclose(plan.sigmas, run.sigmas, rtol=2e-6, err_msg=case.label)
    np.testing.assert_allclose(plan.init_noise_sigma, run.init_noise_sigma, rtol=1e-6)
    free_plan, free = plan_of(case), Tensor.from_numpy(run.samples[0].astype(np.float32))
    clean, last = (Tensor.from_numpy(a[-1]) for a in (outputs, noise))
    reach = 0.0
    for i, (before, after) in enumerate(zip(run.samples[:-1], run.samples[1:], strict=True)):
        where = f"{case.label}, step {i}"
        noised = plan.add_noise(clean, last, i).numpy()
        close(noised, run.noised[i], step * np.abs(run.noised[i]).max(), f"{where}: add_noise")
        reach = max(reach, np.abs(before).max(), np.abs(after).max())
        sample = Tensor.from_numpy(before.astype(np.float32))
        close(stepped(plan, i, sample, outputs, noise).numpy(), after, step * reach, where)
        free = stepped(free_plan, i, free, outputs, noise)
    close(free.numpy(), run.samples[-1], whole * np.abs(run.samples).max(), f"{case.label}: run")


def stepped(plan, i, sample, outputs, noise):
    """Take one step with the model that the generator has."""
    output = generate.model(outputs[i], plan.scale_input(sample, i).numpy()).astype(np.float32)
    fresh = Tensor.from_numpy(noise[i]) if plan.needs_noise(i) else None
    return plan.step(i, Tensor.from_numpy(output), sample, fresh)


def close(ours, theirs, bound, where):
    """Fail unless all values agree; NaN agrees with nothing."""
    error = np.abs(ours - theirs).max()
    assert error <= bound, f"{where}: off by {error:.2e}, allowed {bound:.2e}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_runs_are_those_of_diffusers(recorded, name) -> None:
    """Timesteps, sigmas, add_noise, every step and whole runs are as diffusers has them."""
    cases, outputs, noise = recorded
    mine = [(case, run) for case, run in cases if case.name == name]
    assert len(mine) > 20
    for case, run in mine:
        check(case, run, outputs, noise)


def test_published_configs_name_their_schedulers() -> None:
    """Each published config gets its own scheduler; PNDM, which is not here, a stand-in."""
    made = {name: make_scheduler(None, config) for name, config in generate.PUBLISHED.items()}
    assert {name: (one.name, one.replaced) for name, one in made.items()} == {
        "sd15": ("dpmpp_2m", "PNDMScheduler"),
        "sd21": ("ddim", None),
        "sdxl": ("euler", None),
        "turbo": ("euler_ancestral", None),
        "lcm": ("lcm", None),
    }


@pytest.mark.parametrize("name", [pytest.param(n, marks=oracle_test) for n in SCHEDULERS])
def test_live_runs_are_those_of_diffusers(oracle, name) -> None:
    """The same live, on other numbers and another shape; and in f32 as far as f32 goes."""
    outputs, noise = generate.draws((1, 4, 5, 3), seed=7)
    for case in generate.CASES:
        if case.name == name:
            check(case, generate.run(case, outputs, noise), outputs, noise)
            rounded = generate.run(case, outputs, noise, double=False)
            check(case, rounded, outputs, noise, step=THEIR_ROUNDING, whole=THEIR_ROUNDING)


@pytest.mark.parametrize("name", [pytest.param(n, marks=oracle_test) for n in SCHEDULERS])
def test_timesteps_are_those_of_diffusers_for_every_number_of_steps(oracle, name) -> None:
    """From 1 to 60 steps, all spacings and betas give the very timesteps of diffusers."""
    import diffusers

    respacings = [{}, {"use_karras_sigmas": True}, {"use_exponential_sigmas": True}]
    for betas in (generate.BETAS, {}, {"beta_schedule": "squaredcos_cap_v2"}):
        for spacing in ("leading", "trailing", "linspace"):
            for respaced in respacings if name in ("dpmpp_2m", "unipc") else [{}]:
                config = {**betas, **respaced, "timestep_spacing": spacing, "steps_offset": 1}
                theirs = getattr(diffusers, generate.CLASSES[name]).from_config(config)
                ours = make_scheduler(name, config)
                for steps in range(1, 51 if name == "lcm" else 61):
                    theirs.set_timesteps(steps)
                    expected = theirs.timesteps.numpy()
                    assert expected.tolist() == ours.plan(steps).timesteps.tolist(), config


@pytest.mark.parametrize("case", [pytest.param(None, marks=oracle_test)])
def test_the_file_is_what_the_generator_writes(oracle, recorded, case) -> None:
    """The recorded runs are those that diffusers gives now."""
    cases, outputs, noise = recorded
    for one, run in cases[::7]:
        now = generate.run(one, outputs, noise)
        for name in generate.Run._fields:
            expected, actual = getattr(run, name), getattr(now, name)
            # Their tables are f32: another CPU's torch rounds them otherwise, and a run adds it up.
            bound = THEIR_ROUNDING * np.abs(expected).max(initial=1.0)
            np.testing.assert_allclose(actual, expected, 0, bound, err_msg=one.label)
