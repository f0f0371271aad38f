"""Euler's method over sigma, and its ancestral form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Literal

import numpy as np

from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.continuous import SigmaRange
from propolis_workers.sd.schedulers.levels import Level
from propolis_workers.sd.schedulers.plan import OneStepPlan
from propolis_workers.sd.schedulers.plan import Schedule
from propolis_workers.sd.schedulers.plan import Weights
from propolis_workers.sd.schedulers.scheduler import S
from propolis_workers.sd.schedulers.scheduler import Scheduler
from propolis_workers.sd.schedulers.settings import Settings


if TYPE_CHECKING:
    from collections.abc import Sequence

    from propolis_workers.sd.schedulers.plan import Plan
    from propolis_workers.sd.schedulers.tables import Floats


class Exploding(Scheduler[S]):
    """Schedulers whose samples keep their signal, so that noise is worth sigma."""

    def _visited(self, steps: int) -> tuple[Floats, Floats]:
        """Timesteps and their sigmas."""
        settings = self.settings
        count = settings.num_train_timesteps
        spaced = tables.spaced(
            settings.timestep_spacing, count, steps, count, settings.steps_offset
        )
        settings.check_first(spaced[0])
        timesteps = _as_told(spaced)
        return timesteps, np.interp(timesteps, np.arange(count), self._trained())

    def _trained(self) -> Floats:
        return tables.training_sigmas(self.power).astype(np.float64)

    def _schedule(self, timesteps: Floats, sigmas: Sequence[float]) -> Schedule:
        levels = [Level.exploding(float(sigma)) for sigma in sigmas]
        # With leading spacing the first level is far from pure noise: its signal counts.
        peak = max(level.sigma for level in levels)
        leading = self.settings.timestep_spacing == "leading"
        return Schedule(_as_told(timesteps), levels, math.hypot(1, peak) if leading else peak)


def _as_told(timesteps: Floats) -> Floats:
    """Fractional timesteps as the model is told them, in f32."""
    return timesteps.astype(np.float32).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class EulerSettings(SigmaRange):
    """
    Settings of Euler.

    Attributes:
        timestep_type: ``continuous`` tells a v-prediction model log(sigma) / 4 instead.
        interpolation_type: of sigmas between timesteps.
    """

    timestep_type: Literal["discrete", "continuous"] = "discrete"
    interpolation_type: Literal["linear"] = "linear"


class Euler(Exploding[EulerSettings]):
    """Euler's method for the probability-flow ODE (Karras et al. 2022, algorithm 2, no churn)."""

    name: ClassVar[str] = "euler"
    settings_class: ClassVar[type[Settings]] = EulerSettings

    def _plan(self, steps: int, start: int) -> Plan:
        settings = self.settings
        timesteps, sigmas = self._visited(steps)
        high = sigmas[0] if settings.sigma_max is None else settings.sigma_max
        low = sigmas[-1] if settings.sigma_min is None else settings.sigma_min
        respaced = settings.respaced(high, low, steps)
        if respaced is not None:
            trained = tables.training_sigmas(self.power)
            timesteps, sigmas = tables.timesteps_of(respaced, trained), respaced
        if settings.timestep_type == "continuous" and settings.prediction_type == "v_prediction":
            timesteps = np.log(sigmas) / 4
        end = float(self._trained()[0]) if settings.final_sigmas_type == "sigma_min" else 0.0
        every = [*map(float, sigmas), end]
        weights = []
        for sigma, goal in pairwise(every):
            weights.append(Weights(clean=1 - goal / sigma, sample=goal / sigma))
        return OneStepPlan(settings, self._schedule(timesteps, every), start, weights)


@dataclass(frozen=True, kw_only=True)
class EulerAncestralSettings(Settings):
    """Settings of Euler ancestral."""

    timestep_spacing: Literal["leading", "trailing", "linspace"] = "linspace"


class EulerAncestral(Exploding[EulerAncestralSettings]):
    """
    Euler's method with fresh noise at each step.

    It goes down to the noise that is left of the goal once the variance of the posterior is
    taken from it, and adds that variance (ancestral sampling: Song et al. 2021, appendix F).
    """

    name: ClassVar[str] = "euler_ancestral"
    settings_class: ClassVar[type[Settings]] = EulerAncestralSettings

    def _plan(self, steps: int, start: int) -> Plan:
        timesteps, sigmas = self._visited(steps)
        every = [*map(float, sigmas), 0.0]
        weights = []
        for sigma, goal in pairwise(every):
            share = (goal / sigma) ** 2
            noise = goal * math.sqrt(max(1 - share, 0.0))
            down = goal * goal / sigma
            weights.append(Weights(clean=1 - down / sigma, sample=down / sigma, noise=noise))
        return OneStepPlan(self.settings, self._schedule(timesteps, every), start, weights)
