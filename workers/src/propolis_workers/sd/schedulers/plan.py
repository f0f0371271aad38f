"""
A plan: the timesteps that one image visits, and the step from each to the next.

Coefficients are f64 on the host; tensors stay on their device, and a step is a linear
combination of them by ``propolis.ops``.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import numpy as np

from propolis import ops
from propolis.errors import ShapeError
from propolis.errors import UsageError
from propolis_workers.sd.schedulers.combine import Bounds
from propolis_workers.sd.schedulers.combine import combine


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from propolis import Tensor
    from propolis_workers.sd.schedulers.levels import Level
    from propolis_workers.sd.schedulers.settings import Settings


class Schedule(NamedTuple):
    """
    What the steps of a scheduler visit.

    Attributes:
        timesteps: what the model is told; (n,) f64 or i64.
        levels: noise levels, one for each timestep and the last for the result.
        init_noise_sigma: what unit noise is multiplied by to start with.
    """

    timesteps: NDArray[Any]
    levels: Sequence[Level]
    init_noise_sigma: float = 1.0


class Plan(ABC):
    """
    The steps of one run, to be taken once and in order.

    Attributes:
        timesteps: what the model is told at each step; (n,) f64 or i64.
        sigmas: the ratio of noise to signal before each step and after the last; (n + 1,) f64.
        init_noise_sigma: what unit noise is multiplied by to make the first sample, where
            nothing is given to start from.
    """

    def __init__(self, settings: Settings, schedule: Schedule, start: int) -> None:
        """
        Plan the steps from the index ``start`` on.

        Raises:
            ConfigError: the model's kind of prediction says nothing at the first level.
        """
        self.timesteps = schedule.timesteps[start:]
        self.sigmas: NDArray[np.float64] = np.array([e.sigma for e in schedule.levels[start:]])
        self.init_noise_sigma = schedule.init_noise_sigma
        self._levels = list(schedule.levels[start:])
        self._predicted = [e.predicted(settings.prediction_type) for e in self._levels[:-1]]
        self._bounds = Bounds(settings)
        self._next = 0

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.timesteps)

    def scale_input(self, sample: Tensor, i: int) -> Tensor:
        """What the model is given of the sample before step ``i``; (b, c, h, w), perhaps itself."""
        scale = self._levels[self._index(i, len(self) - 1)].input_scale
        return sample if scale == 1.0 else ops.affine(sample, scale, 0.0)

    def add_noise(self, original: Tensor, noise: Tensor, i: int) -> Tensor:
        """
        A clean sample brought to the noise level before step ``i``.

        Args:
            original: (b, c, h, w).
            noise: the same shape, of unit variance.
            i: from 0; ``len(plan)``, after the last step, gives ``original`` itself.

        Raises:
            ShapeError: the shapes differ.
            UsageError: there is no such step.
        """
        _same_shape("noise", noise, original)
        if self._index(i, len(self)) == len(self):
            return original
        level = self._levels[i]
        return combine((level.signal, original), (level.noise, noise))

    def needs_noise(self, i: int) -> bool:
        """Whether step ``i`` adds fresh noise."""
        self._index(i, len(self) - 1)
        return False

    def step(
        self, i: int, model_output: Tensor, sample: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """
        Go from the timestep at ``i`` to the next.

        Args:
            i: 0 first, then 1, ...: methods of higher order remember the steps before.
            model_output: what the model gave for ``scale_input(sample, i)``, with guidance;
                (b, c, h, w), any float dtype.
            sample: (b, c, h, w) f32.
            noise: the same shape, of unit variance; where ``needs_noise(i)``, else unused.

        Returns:
            The next sample, a new tensor.

        Raises:
            UsageError: the step is not the next one, or its noise is missing.
            ShapeError: the shapes differ.
        """
        self._index(i, len(self) - 1)
        if i != self._next:
            done = "all taken" if self._next == len(self) else f"the next is {self._next}"
            msg = (
                f"step {i} of a plan of {len(self)}: {done}; a plan is used once, in order: "
                f"make another by scheduler.plan()"
            )
            raise UsageError(msg)
        _same_shape("the model's output", model_output, sample)
        if self.needs_noise(i):
            if noise is None:
                msg = f"step {i} adds noise: give one tensor of shape {sample.shape}"
                raise UsageError(msg)
            _same_shape("noise", noise, sample)
        if model_output.dtype is not sample.dtype:
            model_output = ops.cast(model_output, sample.dtype)
        stepped = self._step(i, model_output, sample, noise)
        self._next += 1
        return stepped

    def clean(self, i: int, output: Tensor, sample: Tensor) -> Tensor:
        """
        The clean sample that the model predicts at step ``i``, within the bounds that are set.

        Args:
            i: the step.
            output: what the model gave, (b, c, h, w), the sample's dtype.
            sample: what the step began with.
        """
        mix = self._predicted[i][0]
        return self._bounds(combine((mix.sample, sample), (mix.output, output)))

    @abstractmethod
    def _step(self, i: int, output: Tensor, sample: Tensor, noise: Tensor | None) -> Tensor:
        """Take the step, its arguments checked."""

    def _index(self, i: int, last: int) -> int:
        if not 0 <= i <= last:
            msg = f"step {i} is not one of this plan of {len(self)}: 0 to {last}"
            raise UsageError(msg)
        return i


class Weights(NamedTuple):
    """The next sample, as shares of what is known at a step."""

    clean: float = 0.0
    epsilon: float = 0.0
    sample: float = 0.0
    noise: float = 0.0


class OneStepPlan(Plan):
    """A plan whose steps look at nothing before them."""

    def __init__(
        self, settings: Settings, schedule: Schedule, start: int, weights: Sequence[Weights]
    ) -> None:
        super().__init__(settings, schedule, start)
        self._weights = list(weights[start:])

    def needs_noise(self, i: int) -> bool:
        """Whether step ``i`` adds fresh noise."""
        return self._weights[self._index(i, len(self) - 1)].noise != 0.0

    def _step(self, i: int, output: Tensor, sample: Tensor, noise: Tensor | None) -> Tensor:
        weights = self._weights[i]
        clean, epsilon = self._predicted[i]
        from_sample = weights.sample + weights.epsilon * epsilon.sample
        from_output = weights.epsilon * epsilon.output
        terms = []
        if self._bounds:
            terms.append((weights.clean, self.clean(i, output, sample)))
        else:
            from_sample += weights.clean * clean.sample
            from_output += weights.clean * clean.output
        terms += [(from_sample, sample), (from_output, output)]
        if noise is not None:
            terms.append((weights.noise, noise))
        return combine(*terms)


def _same_shape(what: str, tensor: Tensor, sample: Tensor) -> None:
    if tensor.shape != sample.shape:
        msg = f"{what} has shape {tensor.shape}, and the sample {sample.shape}: they must agree"
        raise ShapeError(msg)
