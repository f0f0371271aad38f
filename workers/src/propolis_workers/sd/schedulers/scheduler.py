"""What schedulers have in common."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from typing import TYPE_CHECKING
from typing import ClassVar
from typing import Generic
from typing import TypeVar

from propolis.errors import ConfigError
from propolis.errors import UsageError
from propolis_workers.sd.schedulers import tables
from propolis_workers.sd.schedulers.settings import Settings


if TYPE_CHECKING:
    from propolis_workers.sd.schedulers.plan import Plan

S = TypeVar("S", bound=Settings)


class Scheduler(ABC, Generic[S]):
    """
    A way from noise to an image.

    Attributes:
        name: as users say it.
        settings_class: the dataclass of what it can be told.
        settings: what it was told.
        replaced: the class that the model's config names, where this scheduler stands in
            for one that is not supported; else None.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]]

    def __init__(self, settings: S, replaced: str | None = None) -> None:
        self.settings = settings
        self.replaced = replaced
        self.power = tables.signal_power(settings)

    def plan(self, steps: int, strength: float = 1.0) -> Plan:
        """
        The steps of one run.

        Args:
            steps: how many a whole run has, from pure noise.
            strength: in (0, 1]; the share of the steps that are run, the last ones. The
                first sample is then ``plan.add_noise(image, noise, 0)``.

        Raises:
            ConfigError: the steps cannot be planned with these settings.
            UsageError: ``steps`` or ``strength`` is out of range, or nothing is left to run.
        """
        most = self._most_steps()
        if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= most:
            msg = f"steps is {steps!r}; scheduler {self.name} takes 1 to {most} here"
            raise UsageError(msg)
        number = isinstance(strength, int | float) and not isinstance(strength, bool)
        if not number or not 0 < strength <= 1:
            msg = f"strength is {strength!r}; supported: above 0, at most 1"
            raise UsageError(msg)
        run = min(int(steps * strength), steps)
        if run == 0:
            msg = (
                f"strength {strength:g} of {steps} steps leaves none to run: take a strength of "
                f"at least {1 / steps:.3g}, or more steps"
            )
            raise UsageError(msg)
        try:
            return self._plan(steps, steps - run)
        except ConfigError as error:
            msg = f"scheduler {self.name}: {error}"
            raise ConfigError(msg) from None

    def _most_steps(self) -> int:
        return self.settings.num_train_timesteps

    @abstractmethod
    def _plan(self, steps: int, start: int) -> Plan:
        """Plan ``steps`` and drop those before ``start``."""
