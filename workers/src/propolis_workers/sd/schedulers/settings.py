"""
What a scheduler can be told, and how it is read from ``scheduler_config.json``.

Each scheduler has a frozen dataclass of settings whose names are those of the published
configs; the type of a field says which values are supported.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import TypeVar

from propolis.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", bound="Settings")

# A config written for another scheduler may hold these; they mean nothing to this one, or to the
# one that is named, and its default stands, as where diffusers turns one scheduler into another.
FOREIGN = {
    "solver_type": {"midpoint", "heun", "logrho", "bh1", "bh2"},
    "algorithm_type": {"deis"},
    "dpmpp_2m.variance_type": {f"fixed_{n}" for n in ("small", "small_log", "large", "large_log")},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """
    What every scheduler takes; defaults are those of diffusers, save ``clip_sample``.

    Attributes:
        num_train_timesteps: T, the number of noise levels that the model was trained with.
        beta_start: the first beta.
        beta_end: the last one.
        beta_schedule: what lies between: ``linear`` (Ho et al. 2020), ``scaled_linear``
            (linear in the square roots: latent diffusion, Rombach et al. 2022) or
            ``squaredcos_cap_v2`` (Nichol, Dhariwal 2021).
        trained_betas: all the betas, instead of the three settings before.
        rescale_betas_zero_snr: make the last level pure noise (Lin et al. 2023, algorithm 1).
        prediction_type: what the model gives: the noise (``epsilon``), the clean sample
            (``sample``), or ``v_prediction`` (Salimans, Ho 2022).
        timestep_spacing: ``leading``, ``trailing`` or ``linspace`` (Lin et al. 2023, table 2).
        steps_offset: what ``leading`` adds to every timestep.
    """

    num_train_timesteps: int = 1000
    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    trained_betas: tuple[float, ...] | None = None
    rescale_betas_zero_snr: bool = False
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    timestep_spacing: Literal["leading", "trailing", "linspace"] = "leading"
    steps_offset: int = 0

    def __post_init__(self) -> None:
        count = self.num_train_timesteps
        self.require("num_train_timesteps", count >= 2, "a whole number from 2")
        self.require("beta_start", 0 < self.beta_start < 1, "a number between 0 and 1")
        self.require("beta_end", self.beta_start <= self.beta_end < 1, "from beta_start to below 1")
        self.require("steps_offset", 0 <= self.steps_offset < count, f"0 to {count - 1}")
        betas = self.trained_betas
        if betas is not None and (len(betas) != count or not all(0 < b < 1 for b in betas)):
            msg = (
                f"trained_betas has {len(betas)} values; supported: one for each of the {count} "
                f"num_train_timesteps, all between 0 and 1"
            )
            raise ConfigError(msg)

    def check_first(self, timestep: float) -> None:
        """
        Refuse a first timestep that the model was not trained with.

        Raises:
            ConfigError: ``steps_offset`` moved it beyond the last.
        """
        last = self.num_train_timesteps - 1
        if timestep > last:
            msg = (
                f"so many steps with steps_offset {self.steps_offset} begin at timestep "
                f"{timestep:g}, beyond the last, {last}: take fewer steps"
            )
            raise ConfigError(msg)

    def require(self, key: str, holds: bool, supported: str) -> None:
        """
        Refuse the value of a setting unless it ``holds``.

        Raises:
            ConfigError: it does not; the message names what is ``supported``.
        """
        if not holds:
            msg = f"{key} is {getattr(self, key)!r}; supported: {supported}"
            raise ConfigError(msg)


@dataclass(frozen=True, kw_only=True)
class Thresholding(Settings):
    """
    Settings of schedulers that can threshold the predicted clean sample.

    Attributes:
        thresholding: dynamic thresholding (Saharia et al. 2022); for pixels, not latents.
        dynamic_thresholding_ratio: the quantile of absolute values that becomes the bound.
        sample_max_value: the largest bound.
    """

    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.dynamic_thresholding_ratio
        self.require("dynamic_thresholding_ratio", 0 < ratio <= 1, "above 0, at most 1")
        self.require("sample_max_value", self.sample_max_value >= 1, "a number from 1")


@dataclass(frozen=True, kw_only=True)
class Clipping(Thresholding):
    """
    Settings of schedulers that can clip the predicted clean sample.

    Attributes:
        clip_sample: whether to; for pixels.  diffusers' default is true, but its pipelines
            of Stable Diffusion turn it off: latents are not within [-1, 1].
        clip_sample_range: to plus and minus this.
    """

    clip_sample: bool = False
    clip_sample_range: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("clip_sample_range", self.clip_sample_range > 0, "a number above 0")


def read_settings(
    cls: type[T], name: str, config: Mapping[str, Any], overrides: Mapping[str, Any]
) -> T:
    """
    Settings of one scheduler.

    Args:
        cls: its dataclass.
        name: the scheduler, for messages.
        config: of a model's folder, perhaps written for another scheduler: keys that this
            one does not take mean nothing, and null is false, or the default of what is no flag.
        overrides: what the user asks for, over ``config``; all of them settings of this one.

    Raises:
        ConfigError: a value is not supported.
    """
    hints = typing.get_type_hints(cls)
    given = {
        key: value is not None and value
        for key, value in config.items()
        if key in hints and (value is not None or hints[key] is bool)
    }
    values = {}
    for key, value in {**given, **overrides}.items():
        try:
            values[key] = _converted(hints[key], value)
        except ValueError as error:
            others = {*FOREIGN.get(key, ()), *FOREIGN.get(f"{name}.{key}", ())}
            foreign = isinstance(value, str) and value in others
            if foreign and key not in overrides:
                continue
            msg = f"scheduler {name}: {key} is {value!r}; supported: {error}"
            raise ConfigError(msg) from None
    try:
        return cls(**values)
    except ConfigError as error:
        msg = f"scheduler {name}: {error}"
        raise ConfigError(msg) from None


def _converted(hint: Any, value: Any) -> Any:
    """``value`` as the type says, or ValueError with what is supported."""
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if any(type(value) is type(one) and value == one for one in allowed):
            return value
        raise ValueError(", ".join(str(one).lower() for one in allowed))
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        return _converted(typing.get_args(hint)[0], value)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_converted(typing.get_args(hint)[0], one) for one in value)
        raise ValueError("a list of numbers")
    number = not isinstance(value, bool)
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ValueError("true, false")
    if hint is int:
        if isinstance(value, int) and number:
            return value
        raise ValueError("a whole number")
    if isinstance(value, int | float) and number and not math.isnan(value):
        return float(value)
    raise ValueError("a number")
