"""What schedulers have in common."""

from __future__ import annotations

import math
from abc import ABC
from abc import abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING
from typing import Any
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
        unused: settings that mean nothing to it, though all schedulers have them.
        settings: what it was told.
        replaced: the class that the model's config names, where this scheduler stands in
            for one that is not supported; else None.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]]
    unused: ClassVar[frozenset[str]] = frozenset()

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
        if not _within(steps, int, most):
            msg = f"steps is {steps!r}; scheduler {self.name} takes 1 to {most} here"
            raise UsageError(msg)
        if not _within(strength, int | float, 1):
            msg = f"strength is {strength!r}; supported: above 0, at most 1"
            raise UsageError(msg)
        try:
            plan = self._plan(steps, steps - min(int(steps * strength), steps))
        except ConfigError as error:
            msg = f"scheduler {self.name}: {error}"
            raise ConfigError(msg) from None
        if len(plan) == 0:
            msg = (
                f"strength {strength:g} of {steps} steps leaves none to run: take a strength of "
                f"at least {math.ceil(1000 / steps) / 1000:g}, or more steps"
            )
            raise UsageError(msg)
        return plan

    def _most_steps(self) -> int:
        return self.settings.num_train_timesteps

    @classmethod
    def takes(cls) -> list[str]:
        """The settings that mean something to it."""
        return [f.name for f in fields(cls.settings_class) if f.name not in cls.unused]

    @abstractmethod
    def _plan(self, steps: int, start: int) -> Plan:
        """Plan ``steps`` and drop those before ``start``."""


def _within(value: Any, kind: Any, most: int) -> bool:
    """Whether a value is a number of the kind, above 0 and at most ``most``."""
    number = isinstance(value, kind) and not isinstance(value, bool)
    return number and bool(0 < value <= most)
