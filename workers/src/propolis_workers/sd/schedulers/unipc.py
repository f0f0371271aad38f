"""UniPC: a predictor, and a corrector that needs no further call of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Literal

import numpy as np

from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.combine import combine
from propolis_workers.sd.schedulers.continuous import SigmaRange
from propolis_workers.sd.schedulers.continuous import SolverSettings
from propolis_workers.sd.schedulers.continuous import solver_schedule
from propolis_workers.sd.schedulers.levels import Level
from propolis_workers.sd.schedulers.plan import Plan
from propolis_workers.sd.schedulers.plan import Schedule
from propolis_workers.sd.schedulers.scheduler import Scheduler


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.sd.schedulers.settings import Settings
    from propolis_workers.sd.schedulers.tables import Floats


@dataclass(frozen=True, kw_only=True)
class UniPCSettings(SolverSettings, SigmaRange):
    """
    Settings of UniPC.

    Attributes:
        predict_x0: solve for the clean sample rather than for the noise.
        solver_type: the function B(h): ``bh1`` is h, ``bh2`` is exp(h) - 1.
        disable_corrector: the steps after which the corrector is left out.
        solver_p: not supported: another scheduler as the predictor.
        use_dynamic_shifting: not supported: flow matching is another kind of model.
    """

    predict_x0: bool = True
    solver_type: Literal["bh1", "bh2"] = "bh2"
    disable_corrector: tuple[int, ...] = ()
    solver_p: Literal[False] = False
    use_dynamic_shifting: Literal[False] = False


class UniPC(Scheduler[UniPCSettings]):
    """The unified predictor-corrector (Zhao et al. 2023, algorithms 1, 2 and appendix A)."""

    name: ClassVar[str] = "unipc"
    settings_class: ClassVar[type[Settings]] = UniPCSettings

    def _plan(self, steps: int, start: int) -> Plan:
        settings = self.settings
        trained = tables.training_sigmas(self.power)
        timesteps, sigmas = solver_schedule(
            settings,
            trained,
            steps,
            below=settings.num_train_timesteps,
            ends=(settings.sigma_min, settings.sigma_max),
        )
        end = 0.0
        if settings.final_sigmas_type == "sigma_min":
            respaced = settings.use_karras_sigmas or settings.use_exponential_sigmas
            end = float(sigmas[-1] if respaced else trained[0])
        levels = [Level.of_sigma(float(sigma)) for sigma in (*sigmas, end)]
        return UniPCPlan(settings, Schedule(timesteps, levels), start)


class UniPCPlan(Plan):
    """The steps, which remember the sample that each came from and two predictions."""

    def __init__(self, settings: UniPCSettings, schedule: Schedule, start: int) -> None:
        super().__init__(settings, schedule, start)
        self._settings = settings
        self._uncorrected = {step - start for step in settings.disable_corrector}
        # Logarithms of signal to noise; infinite after the last step, where no noise is left.
        with np.errstate(divide="ignore"):
            self._lambdas: Floats = -np.log(self.sigmas)
        self._history: list[Tensor] = []  # the newest last
        self._from: Tensor | None = None
        self._reached = 1  # the order of the step before

    def _step(self, i: int, output: Tensor, sample: Tensor, noise: Tensor | None) -> Tensor:
        del noise  # an ODE has none
        settings = self._settings
        predicted = self._prediction(i, output, sample)
        if self._from is not None and i - 1 not in self._uncorrected:
            points = [*self._points(i - 1, self._reached), (1.0, predicted)]
            sample = self._update(i - 1, self._from, points)
        order = min(settings.solver_order, len(self._history) + 1)
        if settings.lower_order_final or self.sigmas[i + 1] == 0.0:
            order = min(order, len(self) - i)
        self._history = [*self._history, predicted][-settings.solver_order :]
        self._from, self._reached = sample, order
        return self._update(i, sample, self._points(i, order))

    def _prediction(self, i: int, output: Tensor, sample: Tensor) -> Tensor:
        """What is integrated: the clean sample or the noise."""
        if self._settings.predict_x0:
            return self.clean(i, output, sample)
        mix = self._predicted[i][1]
        return combine((mix.sample, sample), (mix.output, output))

    def _points(self, i: int, order: int) -> list[tuple[float, Tensor]]:
        """Predictions before step ``i``: where they lie, in units of the step, and their values."""
        here = self._lambdas[i]
        h = self._lambdas[i + 1] - here
        return [
            (float((self._lambdas[i - k] - here) / h), self._history[-1 - k])
            for k in range(1, order)
        ]

    def _update(self, i: int, sample: Tensor, points: list[tuple[float, Tensor]]) -> Tensor:
        """
        Go from level ``i`` to the next.

        Samples are divided by the signal that they hold, so that the ODE's linear part is
        ``y' = ratio * y`` for the clean sample and the identity for the noise.
        """
        here, goal = self._levels[i], self._levels[i + 1]
        newest = self._history[-1]
        ratio = goal.sigma / here.sigma
        if ratio == 1.0:
            return combine((1.0, sample))
        h = -math.log(ratio) if ratio else math.inf
        if self._settings.predict_x0:
            kept, taken, z = ratio, 1 - ratio, -h
            scale = taken if self._settings.solver_type == "bh2" else h
        else:
            kept, taken, z = 1.0, goal.sigma - here.sigma, h
            scale = taken if self._settings.solver_type == "bh2" else -goal.sigma * h
        terms = [(goal.signal / here.signal * kept, sample)]
        weight = taken
        if points:
            base = z if self._settings.solver_type == "bh1" else math.expm1(z)
            places = np.array([place for place, _ in points])
            shares = _shares(places, z, base)
            for share, (place, value) in zip(shares, points, strict=True):
                part = scale * float(share) / place
                weight -= part
                terms.append((goal.signal * part, value))
        terms.append((goal.signal * weight, newest))
        return combine(*terms)


def _shares(places: Floats, z: float, base: float) -> Floats:
    """
    The weights of the differences, so that polynomials are integrated exactly (eq. 10).

    A single difference gets one half, which is all that its order needs.
    """
    if len(places) == 1:
        return np.array([0.5])
    powers = np.vander(places, increasing=True).T
    # phi_1(z) = (exp(z) - 1) / z, phi_{k+1}(z) = (phi_k(z) - 1 / k!) / z.
    phi, factorial = math.expm1(z) / z, 1.0
    moments = []
    for k in range(1, len(places) + 1):
        phi = (phi - 1 / factorial) / z
        factorial *= k + 1
        moments.append(z * phi * math.factorial(k) / base)
    return np.linalg.solve(powers, np.array(moments))
