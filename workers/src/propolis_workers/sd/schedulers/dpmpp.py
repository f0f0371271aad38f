"""DPM-Solver++(2M)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Literal

import numpy as np

from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.combine import combine
from propolis_workers.sd.schedulers.continuous import SolverSettings
from propolis_workers.sd.schedulers.continuous import solver_schedule
from propolis_workers.sd.schedulers.levels import Level
from propolis_workers.sd.schedulers.plan import Plan
from propolis_workers.sd.schedulers.plan import Schedule
from propolis_workers.sd.schedulers.scheduler import Scheduler


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.schedulers.settings import Settings

# From so many steps on, lower_order_final means nothing.
MANY_STEPS = 15


@dataclass(frozen=True, kw_only=True)
class DPMPP2MSettings(SolverSettings):
    """
    Settings of DPM++ 2M.

    Attributes:
        algorithm_type: ``dpmsolver++`` alone.
        solver_type: how the second order is approximated: ``midpoint`` or ``heun``.
        euler_at_final: look at one prediction only in the last step.
        lambda_min_clipped: leave out timesteps whose log(signal / noise) is below it.
        use_lu_lambdas: not supported.
        variance_type: none alone: not of models that predict it.
    """

    algorithm_type: Literal["dpmsolver++"] = "dpmsolver++"
    solver_type: Literal["midpoint", "heun"] = "midpoint"
    euler_at_final: bool = False
    lambda_min_clipped: float = -math.inf
    use_lu_lambdas: Literal[False] = False
    variance_type: Literal["none"] = "none"


class DPMPP2M(Scheduler[DPMPP2MSettings]):
    """DPM-Solver++ of order 2, multistep (Lu et al. 2022, "DPM-Solver++", algorithm 2)."""

    name: ClassVar[str] = "dpmpp_2m"
    settings_class: ClassVar[type[Settings]] = DPMPP2MSettings

    def _plan(self, steps: int, start: int) -> Plan:
        settings = self.settings
        trained = tables.training_sigmas(self.power)
        # log(signal / noise) is -log(sigma), and falls.
        below = int(np.count_nonzero(-np.log(trained) >= settings.lambda_min_clipped))
        settings.require("lambda_min_clipped", below > 0, "a number that leaves timesteps")
        timesteps, sigmas = solver_schedule(
            settings,
            trained,
            steps,
            below=below,
            rounded=settings.beta_schedule != "squaredcos_cap_v2",
        )
        end = float(trained[0]) if settings.final_sigmas_type == "sigma_min" else 0.0
        levels = [Level.of_sigma(float(sigma)) for sigma in (*sigmas, end)]
        return DPMPP2MPlan(settings, Schedule(timesteps, levels), start)


class DPMPP2MPlan(Plan):
    """The steps, which remember the clean sample predicted one step before."""

    def __init__(self, settings: DPMPP2MSettings, schedule: Schedule, start: int) -> None:
        super().__init__(settings, schedule, start)
        self._heun = settings.solver_type == "heun"
        self._order = settings.solver_order
        few = settings.lower_order_final and len(schedule.timesteps) < MANY_STEPS
        self._low_end = few or settings.euler_at_final or settings.final_sigmas_type == "zero"
        self._before: Tensor | None = None

    def _step(self, i: int, output: Tensor, sample: Tensor, noise: Tensor | None) -> Tensor:
        del noise  # an ODE has none
        clean, before = self.clean(i, output, sample), self._before
        self._before = clean
        here, goal = self._levels[i], self._levels[i + 1]
        # exp(-h), with h the step in log(signal / noise).
        ratio = goal.sigma / here.sigma
        if ratio == 1.0:
            return combine((1.0, sample))
        kept = goal.noise / here.noise
        taken = goal.signal * (1 - ratio)
        last = i == len(self) - 1
        if self._order == 1 or before is None or (last and self._low_end):
            return combine((kept, sample), (taken, clean))
        h = -math.log(ratio)
        slope = taken / 2
        if self._heun:
            slope = goal.signal * (1 - (1 - ratio) / h)
        # The slope is over the step before, in units of this one.
        slope *= h / math.log(self.sigmas[i - 1] / self.sigmas[i])
        return combine((kept, sample), (taken + slope, clean), (-slope, before))
