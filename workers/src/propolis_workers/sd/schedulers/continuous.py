"""Noise levels by sigma: the settings, and the schedule of each family of solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal

import numpy as np

from propolis.errors import ConfigError
from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.settings import Settings
from propolis_workers.sd.schedulers.settings import Thresholding


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from propolis_workers.sd.schedulers.tables import Floats


@dataclass(frozen=True, kw_only=True)
class SigmaSettings(Settings):
    """
    Settings of schedulers that may choose their sigmas freely.

    Attributes:
        use_karras_sigmas: space them as Karras et al. 2022.
        use_exponential_sigmas: space them evenly in their logarithm.
        use_beta_sigmas: not supported.
        final_sigmas_type: end at ``zero`` noise, or at the least of training (``sigma_min``).
    """

    timestep_spacing: Literal["leading", "trailing", "linspace"] = "linspace"
    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False
    use_beta_sigmas: Literal[False] = False
    final_sigmas_type: Literal["zero", "sigma_min"] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_karras_sigmas and self.use_exponential_sigmas:
            raise ConfigError(
                "use_karras_sigmas and use_exponential_sigmas are both true; supported: one"
            )

    def respaced(self, high: float, low: float, steps: int) -> Floats | None:
        """Falling sigmas of the kind asked for; None where those of the timesteps stay."""
        if self.use_karras_sigmas:
            return tables.karras(high, low, steps)
        if self.use_exponential_sigmas:
            return tables.exponential(high, low, steps)
        return None


@dataclass(frozen=True, kw_only=True)
class SigmaRange(SigmaSettings):
    """
    Settings of schedulers whose Karras and exponential sigmas may have ends of their own.

    Attributes:
        sigma_min: the least.
        sigma_max: the greatest.
    """

    sigma_min: float | None = None
    sigma_max: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.sigma_min, self.sigma_max
        self.require("sigma_min", low is None or low > 0, "a number above 0")
        supported = "a number above sigma_min"
        self.require("sigma_max", high is None or high > (low or 0.0), supported)


@dataclass(frozen=True, kw_only=True)
class SolverSettings(SigmaSettings, Thresholding):
    """
    Settings of the multistep solvers.

    Attributes:
        solver_order: how many predictions a step looks at.
        lower_order_final: look at fewer at the end, which is steadier with few steps.
        use_flow_sigmas: not supported: flow matching is another kind of model.
    """

    solver_order: Literal[1, 2] = 2
    lower_order_final: bool = True
    use_flow_sigmas: Literal[False] = False


def solver_schedule(
    settings: SolverSettings,
    trained: NDArray[np.float32],
    steps: int,
    *,
    below: int,
    ends: tuple[float | None, float | None] = (None, None),
    rounded: bool = True,
) -> tuple[NDArray[np.int64], Floats]:
    """
    Timesteps and sigmas of the multistep solvers, which leave out the last of ``steps + 1``.

    Args:
        settings: the spacings.
        trained: sigma of each timestep of training.
        steps: how many.
        below: timesteps below this one are visited.
        ends: the least and the greatest sigma of respaced ones, where not those of training.
        rounded: whether timesteps of Karras sigmas are rounded, rather than cut off.

    Raises:
        ConfigError: the steps are so many that two of them fall on one noise level.
    """
    count = settings.num_train_timesteps
    low = float(trained[0]) if ends[0] is None else ends[0]
    high = float(trained[-1]) if ends[1] is None else ends[1]
    sigmas = settings.respaced(high, low, steps)
    if sigmas is not None:
        times = tables.timesteps_of(sigmas, trained)
        if settings.use_karras_sigmas and rounded:
            times = np.round(times)
        return times.astype(np.int64), sigmas
    spacing = settings.timestep_spacing
    if spacing == "trailing":
        times = tables.spaced(spacing, below, steps, count)
    else:
        times = np.round(
            tables.spaced(spacing, below, steps + 1, count, settings.steps_offset)[:-1]
        )
    timesteps = times.astype(np.int64)
    if len(np.unique(timesteps)) < len(timesteps):
        msg = (
            f"{steps} steps with timestep_spacing {spacing} visit a timestep twice, which a "
            f"multistep method cannot: take fewer steps"
        )
        raise ConfigError(msg)
    settings.check_first(timesteps[0])
    return timesteps, trained[timesteps].astype(np.float64)
