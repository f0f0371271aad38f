"""What holds of every scheduler, whatever others do, and what bad input is told."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import ConfigError
from propolis.errors import ShapeError
from propolis.errors import UsageError
from propolis_workers.sd.schedulers import SCHEDULERS
from propolis_workers.sd.schedulers import make_scheduler


BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SHAPE = (1, 2, 3, 3)


def draw(seed: int) -> Tensor:
    """Draw normal numbers of one shape."""
    return Tensor.from_numpy(np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32))


def finished(scheduler, clean, *, kind: str, steps: int = 8, strength: float = 1.0) -> np.ndarray:
    """Run with a model that always knows the clean sample, and says so in its own way."""
    plan = scheduler.plan(steps, strength)
    sample = plan.add_noise(clean, draw(1), 0)
    for i in range(len(plan)):
        x, x0 = sample.numpy().astype(np.float64), clean.numpy().astype(np.float64)
        level = plan._levels[i]
        epsilon = (x - level.signal * x0) / level.noise
        signal, noise = level.signal * level.input_scale, level.noise * level.input_scale
        said = {"epsilon": epsilon, "sample": x0, "v_prediction": signal * epsilon - noise * x0}
        output = Tensor.from_numpy(said[kind].astype(np.float32))
        sample = plan.step(i, output, sample, draw(2 + i) if plan.needs_noise(i) else None)
    return sample.numpy()


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_model_that_knows_the_image_ends_at_it(name, strength, kind) -> None:
    """Where the model is right at every step, the run ends at the clean sample."""
    scheduler = make_scheduler(name, {**BETAS, "prediction_type": kind, "steps_offset": 1})
    clean = draw(0)
    ended = finished(scheduler, clean, kind=kind, strength=strength)
    # LCM's boundary condition keeps a ten-thousandth of the sample.
    np.testing.assert_allclose(ended, clean.numpy(), atol=2e-4 if name == "lcm" else 2e-5)


@pytest.mark.parametrize("name", ["dpmpp_2m", "unipc"])
@pytest.mark.parametrize("extra", [{}, {"lower_order_final": False}, {"solver_order": 1}])
def test_solvers_end_without_noise_whatever_their_order(name, extra) -> None:
    """The last step, where log(signal / noise) is infinite, gives finite numbers."""
    for kind in ("bh1", "bh2") if name == "unipc" else ("midpoint", "heun"):
        settings = {**BETAS, "solver_type": kind, **extra}
        clean = draw(0)
        ended = finished(make_scheduler(name, settings), clean, kind="epsilon", steps=20)
        np.testing.assert_allclose(ended, clean.numpy(), atol=2e-5)


def test_unipc_solving_for_noise_ends_at_the_image() -> None:
    """UniPC with predict_x0 false ends at the clean sample as well, at no noise."""
    settings = {**BETAS, "predict_x0": False}
    clean = draw(0)
    ended = finished(make_scheduler("unipc", settings), clean, kind="epsilon")
    np.testing.assert_allclose(ended, clean.numpy(), atol=2e-5)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_outputs_in_half_precision_are_taken(name) -> None:
    """A model's output in f16 is read as f32, and the sample stays f32."""
    plan = make_scheduler(name, BETAS).plan(4)
    output = ops.cast(draw(0), dtypes.f16)
    stepped = plan.step(0, output, draw(1), draw(2))
    again = make_scheduler(name, BETAS).plan(4)
    expected = again.step(0, ops.cast(output, dtypes.f32), draw(1), draw(2))
    assert stepped.dtype is dtypes.f32
    assert stepped.numpy().tolist() == expected.numpy().tolist()


def test_arguments_are_left_as_they_are() -> None:
    """Steps change neither the sample nor the output nor the noise."""
    for name in SCHEDULERS:
        plan = make_scheduler(name, BETAS).plan(3)
        given = [draw(0), draw(1), draw(2)]
        kept = [tensor.numpy().copy() for tensor in given]
        plan.step(0, given[0], given[1], given[2])
        plan.step(1, given[0], given[1], given[2])
        plan.add_noise(given[0], given[2], 0)
        assert all((t.numpy() == k).all() for t, k in zip(given, kept, strict=True)), name


def test_what_follows_the_last_step_is_noise_free() -> None:
    """add_noise after the last step, as inpainting asks at its end, gives the image itself."""
    plan = make_scheduler("euler", BETAS).plan(3)
    clean = draw(0)
    assert plan.add_noise(clean, draw(1), 3) is clean


@pytest.mark.parametrize(
    ("name", "config", "overrides", "message"),
    [
        ("eular", {}, {}, r"no scheduler 'eular'; supported: ddim, .*lcm; did you mean euler\?"),
        ("DPMPP_2M", {}, {}, r"did you mean dpmpp_2m\?"),
        ("DDIMScheduler", {}, {}, r"supported: .*lcm; DDIMScheduler is ddim here$"),
        ("PNDMScheduler", {}, {}, r"lcm; dpmpp_2m stands in for PNDMScheduler here$"),
        ("EDMEulerScheduler", {}, {}, r"supported: .*lcm$"),
        (None, {}, {}, r"names no _class_name; supported: DDIMScheduler.* choose one of ddim"),
        (None, {"_class_name": "EDMEulerScheduler"}, {}, "is for EDMEulerScheduler; supported"),
        ("ddim", {"beta_schedule": "sigmoid"}, {}, "beta_schedule is 'sigmoid'; supported: linear"),
        ("ddim", {"prediction_type": "flow"}, {}, "'flow'; supported: epsilon, v_prediction"),
        ("ddim", {"timestep_spacing": "even"}, {}, "'even'; supported: leading, trailing"),
        ("ddim", {"beta_end": "0.02"}, {}, "beta_end is '0.02'; supported: a number"),
        ("ddim", {"beta_start": 0.5, "beta_end": 0.1}, {}, "ddim: beta_end is 0.1; supported"),
        ("ddim", {"steps_offset": True}, {}, "steps_offset is True; supported: a whole number"),
        ("ddim", {"clip_sample": 1}, {}, "clip_sample is 1; supported: true, false"),
        ("ddim", {"trained_betas": [0.1]}, {}, "trained_betas has 1 values; supported: one for"),
        ("ddim", {}, {"eta": 1.5}, "eta is 1.5; supported: 0 to 1"),
        (
            "ddim",
            {},
            {"use_karras_sigmas": True, "use_exponential_sigmas": False},
            r"ddim takes no sigmas karras \(use_karras_sigmas\); euler, dpmpp_2m, unipc do$",
        ),
        (
            "lcm",
            {},
            {"use_karras_sigmas": False, "use_exponential_sigmas": True},
            r"lcm takes no sigmas exponential \(use_exponential_sigmas\); euler, dpmpp_2m, ",
        ),
        (
            "ddim",
            {},
            {"use_karras_sigmas": False, "use_exponential_sigmas": False},
            r"ddim takes no sigmas normal \(use_karras_sigmas\); euler, dpmpp_2m, unipc do",
        ),
        ("euler", {}, {"eta": 0.5}, r"euler takes no eta; ddim does$"),
        (
            "lcm",
            {},
            {"timestep_spacing": "trailing"},
            r"lcm takes no spacing \(timestep_spacing\); ddim, ddpm, euler, .*unipc do$",
        ),
        ("ddim", {}, {"use_beta": True}, "scheduler ddim has no setting 'use_beta'; it takes num"),
        ("euler", {}, {"use_karas_sigmas": True}, r"did you mean use_karras_sigmas\?"),
        ("euler", {"use_beta_sigmas": True}, {}, "use_beta_sigmas is True; supported: false"),
        ("euler", {"interpolation_type": "log_linear"}, {}, "'log_linear'; supported: linear"),
        (
            "euler",
            {"use_karras_sigmas": True, "use_exponential_sigmas": True},
            {},
            "both true; supported: one",
        ),
        ("ddpm", {"variance_type": "learned_range"}, {}, "'learned_range'; supported: fixed_small"),
        ("dpmpp_2m", {"solver_order": 3}, {}, "solver_order is 3; supported: 1, 2"),
        ("dpmpp_2m", {"algorithm_type": "sde-dpmsolver++"}, {}, "supported: dpmsolver"),
        ("dpmpp_2m", {}, {"solver_type": "bh2"}, "'bh2'; supported: midpoint, heun"),
        ("unipc", {"use_flow_sigmas": True}, {}, "use_flow_sigmas is True; supported: false"),
        ("lcm", {"original_inference_steps": 0}, {}, "is 0; supported: 1 to 1000"),
    ],
)
def test_bad_settings_are_refused(name, config, overrides, message) -> None:
    """The message names the setting, what was given and what is supported."""
    with pytest.raises(ConfigError, match=message):
        make_scheduler(name, config, overrides)


def test_settings_of_other_schedulers_mean_nothing() -> None:
    """A folder's config may be for another scheduler; its keys and null are passed over."""
    config = {**BETAS, "solver_type": "bh2", "skip_prk_steps": True, "variance_type": None}
    made = make_scheduler("dpmpp_2m", config)
    assert made.settings.solver_type == "midpoint"
    assert make_scheduler("ddpm", config).settings.variance_type == "fixed_small"


@pytest.mark.parametrize("steps", [0, -1, 1001, 2.5, True, None])
def test_steps_out_of_range_are_refused(steps) -> None:
    """The message names the scheduler and how many steps it takes."""
    with pytest.raises(UsageError, match=r"steps is .*; scheduler ddim takes 1 to 1000 here"):
        make_scheduler("ddim", BETAS).plan(steps)


def test_lcm_takes_no_more_steps_than_it_was_distilled_with() -> None:
    """LCM's bound on the steps is original_inference_steps."""
    with pytest.raises(UsageError, match=r"steps is 51; scheduler lcm takes 1 to 50 here"):
        make_scheduler("lcm", BETAS).plan(51)


@pytest.mark.parametrize("strength", [0, -0.5, 1.01, float("nan"), "1", None, True])
def test_wrong_strengths_are_refused(strength) -> None:
    """The message names what was given and the range."""
    with pytest.raises(UsageError, match=r"strength is .*; supported: above 0, at most 1"):
        make_scheduler("ddim", BETAS).plan(10, strength)


def test_a_strength_that_leaves_no_step_is_refused() -> None:
    """The message says what strength leaves one."""
    with pytest.raises(UsageError, match=r"strength 0.05 of 10 steps leaves none .* least 0.1"):
        make_scheduler("euler", BETAS).plan(10, 0.05)


@pytest.mark.parametrize(
    ("name", "config", "steps", "message"),
    [
        ("ddim", {"steps_offset": 1}, 1000, "begin at timestep 1000, beyond the last, 999"),
        ("euler", {"steps_offset": 1, "timestep_spacing": "leading"}, 1000, "euler: so many"),
        ("dpmpp_2m", {}, 1000, "visit a timestep twice.* take fewer steps"),
        ("unipc", {"timestep_spacing": "leading"}, 1000, "unipc: 1000 steps .* visit a timestep"),
        ("dpmpp_2m", {"lambda_min_clipped": 50.0}, 10, "leaves timesteps"),
        (
            "ddim",
            {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"},
            10,
            "ddim: rescale_betas_zero_snr leaves no signal .* use v_prediction or sample",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(name, config, steps, message) -> None:
    """Settings that do not go with the steps are named, not answered with NaN."""
    with pytest.raises(ConfigError, match=message):
        make_scheduler(name, {**BETAS, **config}).plan(steps)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_plan_is_used_once_and_in_order(name) -> None:
    """A step skipped, repeated or after the end is refused, and says how to go on."""
    plan = make_scheduler(name, BETAS).plan(2)
    with pytest.raises(UsageError, match="step 1 of a plan of 2: the next is 0"):
        plan.step(1, draw(0), draw(1), draw(2))
    for i in range(2):
        plan.step(i, draw(0), draw(1), draw(2))
    with pytest.raises(UsageError, match=r"all taken; a plan is used once, .* scheduler.plan\(\)"):
        plan.step(0, draw(0), draw(1), draw(2))
    with pytest.raises(UsageError, match="step 2 is not one of this plan of 2: 0 to 1"):
        plan.step(2, draw(0), draw(1), draw(2))


def test_wrong_tensors_are_refused() -> None:
    """Shapes that differ and noise that is missing are named; the step may then be taken."""
    plan = make_scheduler("ddpm", BETAS).plan(2)
    wide = Tensor.from_numpy(np.zeros((1, 4, 3, 3), np.float32))
    with pytest.raises(ShapeError, match=r"the model's output has shape \(1, 4, 3, 3\), and"):
        plan.step(0, wide, draw(1), draw(2))
    with pytest.raises(UsageError, match=r"step 0 adds noise: give one tensor of shape"):
        plan.step(0, draw(0), draw(1))
    with pytest.raises(ShapeError, match="noise has shape"):
        plan.step(0, draw(0), draw(1), wide)
    with pytest.raises(ShapeError, match="noise has shape"):
        plan.add_noise(draw(0), wide, 0)
    plan.step(0, draw(0), draw(1), draw(2))
