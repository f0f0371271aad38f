"""Schedulers over the timesteps of training: DDIM, DDPM and LCM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Literal

import numpy as np

from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.levels import Level
from propolis_workers.sd.schedulers.plan import OneStepPlan
from propolis_workers.sd.schedulers.plan import Schedule
from propolis_workers.sd.schedulers.plan import Weights
from propolis_workers.sd.schedulers.scheduler import S
from propolis_workers.sd.schedulers.scheduler import Scheduler
from propolis_workers.sd.schedulers.settings import Clipping
from propolis_workers.sd.schedulers.settings import Settings


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from propolis_workers.sd.schedulers.plan import Plan


class Discrete(Scheduler[S]):
    """What these schedulers have in common."""

    def _timesteps(self, steps: int) -> NDArray[np.int64]:
        """Whole timesteps, falling."""
        settings = self.settings
        count = settings.num_train_timesteps
        spaced = tables.spaced(
            settings.timestep_spacing, count, steps, count, settings.steps_offset
        )
        settings.check_first(spaced[0])
        return np.round(spaced).astype(np.int64)

    def _powers(self, timesteps: NDArray[np.int64]) -> list[float]:
        return [float(power) for power in self.power[timesteps]]


@dataclass(frozen=True, kw_only=True)
class DDIMSettings(Clipping):
    """
    Settings of DDIM.

    Attributes:
        set_alpha_to_one: end at the clean sample, rather than at the first level of training.
        eta: the share of fresh noise: 0 for none, 1 for as much as DDPM adds.
    """

    set_alpha_to_one: bool = True
    eta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("eta", 0 <= self.eta <= 1, "0 to 1")


class DDIM(Discrete[DDIMSettings]):
    """
    Denoising diffusion implicit models (Song et al. 2020, eq. 12 and 16).

    A step goes down by T // steps timesteps, whatever the spacing, as in diffusers.
    """

    name: ClassVar[str] = "ddim"
    settings_class: ClassVar[type[Settings]] = DDIMSettings

    def _plan(self, steps: int, start: int) -> Plan:
        timesteps = self._timesteps(steps)
        down = self.settings.num_train_timesteps // steps
        end = 1.0 if self.settings.set_alpha_to_one else float(self.power[0])
        powers = self._powers(timesteps)
        after = [float(self.power[t - down]) if t >= down else end for t in timesteps]
        weights = []
        for power, goal in zip(powers, after, strict=True):
            fresh = self.settings.eta**2 * _posterior_variance(power, goal)
            weights.append(
                Weights(
                    clean=math.sqrt(goal),
                    epsilon=math.sqrt(max(1 - goal - fresh, 0.0)),
                    noise=math.sqrt(fresh),
                )
            )
        levels = [Level.of_power(power) for power in (*powers, after[-1])]
        return OneStepPlan(self.settings, Schedule(timesteps, levels), start, weights)


@dataclass(frozen=True, kw_only=True)
class DDPMSettings(Clipping):
    """
    Settings of DDPM.

    Attributes:
        variance_type: of the fresh noise: ``fixed_small`` is the posterior's variance
            (``fixed_small_log`` too), ``fixed_large`` is beta (Ho et al. 2020, section 3.2).
    """

    variance_type: Literal["fixed_small", "fixed_small_log", "fixed_large"] = "fixed_small"


class DDPM(Discrete[DDPMSettings]):
    """Denoising diffusion probabilistic models (Ho et al. 2020, eq. 7)."""

    name: ClassVar[str] = "ddpm"
    settings_class: ClassVar[type[Settings]] = DDPMSettings

    def _plan(self, steps: int, start: int) -> Plan:
        timesteps = self._timesteps(steps)
        powers = [*self._powers(timesteps), 1.0]
        weights = []
        for i, timestep in enumerate(timesteps):
            power, goal = powers[i], powers[i + 1]
            alpha = power / goal
            variance = 1 - alpha
            if self.settings.variance_type != "fixed_large":
                variance = _posterior_variance(power, goal)
            weights.append(
                Weights(
                    clean=math.sqrt(goal) * (1 - alpha) / (1 - power),
                    sample=math.sqrt(alpha) * (1 - goal) / (1 - power),
                    noise=math.sqrt(variance) if timestep > 0 else 0.0,
                )
            )
        levels = [Level.of_power(power) for power in powers]
        return OneStepPlan(self.settings, Schedule(timesteps, levels), start, weights)


def _posterior_variance(power: float, goal: float) -> float:
    """The variance of a sample at ``goal`` given the one at ``power`` and the clean one."""
    return (1 - goal) / (1 - power) * (1 - power / goal)


@dataclass(frozen=True, kw_only=True)
class LCMSettings(Clipping):
    """
    Settings of LCM; betas are those of Stable Diffusion, where the config does not say.

    Attributes:
        original_inference_steps: of the schedule that the model was distilled with.
        timestep_scaling: how sharply the boundary condition holds at timestep 0.
    """

    beta_start: float = 0.00085
    beta_end: float = 0.012
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "scaled_linear"
    original_inference_steps: int = 50
    timestep_scaling: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, count = self.original_inference_steps, self.num_train_timesteps
        self.require("original_inference_steps", 1 <= steps <= count, f"1 to {count}")


class LCM(Discrete[LCMSettings]):
    """
    Latent consistency models (Luo et al. 2023, algorithm 3).

    The timesteps are those of distillation, thinned out; spacing and offset mean nothing.
    """

    name: ClassVar[str] = "lcm"
    unused: ClassVar[frozenset[str]] = frozenset({"timestep_spacing", "steps_offset"})
    settings_class: ClassVar[type[Settings]] = LCMSettings
    sigma_data: ClassVar[float] = 0.5

    def _most_steps(self) -> int:
        return self.settings.original_inference_steps

    def _timesteps(self, steps: int) -> NDArray[np.int64]:
        original = self.settings.original_inference_steps
        apart = self.settings.num_train_timesteps // original
        distilled = np.arange(original, 0, -1) * apart - 1
        return distilled[np.arange(steps) * original // steps].astype(np.int64)

    def _plan(self, steps: int, start: int) -> Plan:
        timesteps = self._timesteps(steps)
        powers = [*self._powers(timesteps), 1.0]
        weights = []
        for i, timestep in enumerate(timesteps):
            # The boundary condition of consistency models: at timestep 0, the sample itself.
            scaled = float(timestep) * self.settings.timestep_scaling
            length = math.hypot(scaled, self.sigma_data)
            kept, taken = (self.sigma_data / length) ** 2, scaled / length
            signal, noise = math.sqrt(powers[i + 1]), math.sqrt(1 - powers[i + 1])
            weights.append(Weights(clean=signal * taken, sample=signal * kept, noise=noise))
        levels = [Level.of_power(power) for power in powers]
        return OneStepPlan(self.settings, Schedule(timesteps, levels), start, weights)
