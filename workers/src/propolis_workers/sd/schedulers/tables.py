"""
Noise levels: of training, and those that the steps of a plan visit.

At timestep t a sample is ``sqrt(abar) * x0 + sqrt(1 - abar) * noise``, with ``abar`` the
cumulative product of 1 - beta (Ho et al. 2020, eq. 4), and its sigma is the ratio of noise to
signal, ``sqrt((1 - abar) / abar)`` (Karras et al. 2022).  The tables of training are rounded
to f32 at each stage as they are where models are trained, in torch: computed in f64 they
differ by 1e-6, which the timestep found for a sigma may show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from propolis_workers.sd.schedulers.settings import Settings

    Floats = NDArray[np.float64]

# What "no signal at all" is taken for where sigma must be finite: sigma is then 4096.
SMALLEST_SIGNAL = np.float32(2.0**-24)
KARRAS_RHO = 7.0
MAX_BETA = 0.999


def signal_power(settings: Settings) -> NDArray[np.float32]:
    """``abar`` for each timestep of training, falling; (T,) f32."""
    count = settings.num_train_timesteps
    one = np.float32(1)
    if settings.trained_betas is not None:
        betas = np.array(settings.trained_betas, np.float32)
    elif settings.beta_schedule == "linear":
        betas = _linspace32(settings.beta_start, settings.beta_end, count)
    elif settings.beta_schedule == "scaled_linear":
        betas = _linspace32(settings.beta_start**0.5, settings.beta_end**0.5, count) ** 2
    else:
        # Nichol, Dhariwal 2021, eq. 17.
        ends = np.arange(count + 1) / count
        power = np.cos((ends + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - power[1:] / power[:-1], MAX_BETA).astype(np.float32)
    power32 = _running_product(one - betas)
    if not settings.rescale_betas_zero_snr:
        return power32
    # Lin et al. 2023, algorithm 1: shift sqrt(abar) so that its end is 0, and scale it so that
    # its start stays; then back to betas, as training has them.
    root = np.sqrt(power32)
    first, last = root[0], root[-1]
    root = (root - last) * (first / (first - last))
    power32 = root**2
    alphas = np.concatenate([power32[:1], power32[1:] / power32[:-1]])
    return _running_product(one - (one - alphas))


def _linspace32(start: float, stop: float, count: int) -> NDArray[np.float32]:
    """Evenly spaced, as f32 has it: a rounded step, counted from the nearer end."""
    low, high = np.float32(start), np.float32(stop)
    step = np.float64((high - low) / np.float32(count - 1))
    places = np.arange(count)
    rising = np.float64(low) + step * places
    falling = np.float64(high) - step * (count - 1 - places)
    return np.where(places < count // 2, rising, falling).astype(np.float32)


def _running_product(alphas: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.cumprod(alphas.astype(np.float64)).astype(np.float32)


def training_sigmas(power: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sigma for each timestep of training, rising; finite also where there is no signal."""
    power = np.where(power == 0, SMALLEST_SIGNAL, power)
    sigmas: NDArray[np.float32] = np.sqrt((np.float32(1) - power) / power)
    return sigmas


def spaced(spacing: str, last: int, steps: int, total: int, offset: int = 0) -> Floats:
    """
    Timesteps in falling order (Lin et al. 2023, table 2), not yet rounded.

    Args:
        spacing: ``leading``, ``trailing`` or ``linspace``.
        last: timesteps below this one are visited.
        steps: how many; ``trailing`` gives fewer where ``last`` is below ``total``.
        total: T.
        offset: what ``leading`` adds.
    """
    if spacing == "linspace":
        return np.linspace(0, last - 1, steps)[::-1]
    if spacing == "leading":
        return np.arange(steps, dtype=np.float64)[::-1] * (last // steps) + offset
    # Rounding may give arange one element too many.
    return np.round(np.arange(last, 0, -total / steps))[:steps] - 1


def karras(high: float, low: float, steps: int) -> Floats:
    """Falling sigmas, evenly spaced in ``sigma ** (1 / 7)`` (Karras et al. 2022, eq. 5)."""
    start, stop = high ** (1 / KARRAS_RHO), low ** (1 / KARRAS_RHO)
    roots: Floats = start + np.linspace(0, 1, steps) * (stop - start)
    return roots**KARRAS_RHO


def exponential(high: float, low: float, steps: int) -> Floats:
    """Falling sigmas, evenly spaced in their logarithm."""
    return np.exp(np.linspace(np.log(high), np.log(low), steps))


def timesteps_of(sigmas: Floats, trained: NDArray[np.float32]) -> Floats:
    """The fractional timesteps that have these sigmas, between those of training."""
    # Rounded to f32 as where models are trained, but the same on every machine.
    logs = np.log(trained.astype(np.float64)).astype(np.float32)
    return np.interp(np.log(sigmas), logs, np.arange(len(trained)))
