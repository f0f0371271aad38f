"""A noise level, and what a model's output says about a sample at it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from propolis.errors import ConfigError


class Mix(NamedTuple):
    """``sample * the sample + output * the model's output``."""

    sample: float
    output: float


@dataclass(frozen=True)
class Level:
    """
    A sample here is ``signal * x0 + noise * epsilon``.

    Attributes:
        signal: the share of the clean sample.
        noise: the share of the noise.
        input_scale: what the sample is multiplied by before the model sees it.
    """

    signal: float
    noise: float
    input_scale: float = 1.0

    @classmethod
    def of_power(cls, power: float) -> Level:
        """The level whose sample keeps unit variance, with ``power`` of it signal."""
        return cls(math.sqrt(power), math.sqrt(1 - power))

    @classmethod
    def of_sigma(cls, sigma: float) -> Level:
        """The same, by its ratio of noise to signal."""
        signal = 1 / math.hypot(1, sigma)
        return cls(signal, sigma * signal)

    @classmethod
    def exploding(cls, sigma: float) -> Level:
        """The level whose sample keeps its signal: the model sees it scaled to unit variance."""
        return cls(1.0, sigma, 1 / math.hypot(1, sigma))

    @property
    def sigma(self) -> float:
        """The ratio of noise to signal; infinite where there is no signal."""
        return self.noise / self.signal if self.signal else math.inf

    def predicted(self, prediction_type: str) -> tuple[Mix, Mix]:
        """
        The clean sample and the noise that a model's output means.

        Raises:
            ConfigError: there is no signal here and the output is the noise: it says nothing
                about the clean sample.
        """
        if prediction_type == "sample":
            clean = Mix(0.0, 1.0)
            return clean, Mix(1 / self.noise, -self.signal / self.noise)
        if prediction_type == "v_prediction":
            # v = signal * epsilon - noise * x0, of a sample scaled to unit variance.
            scale = self.input_scale
            signal, noise = self.signal * scale, self.noise * scale
            return Mix(signal * scale, -noise), Mix(noise * scale, signal)
        if self.signal == 0:
            raise ConfigError(
                "rescale_betas_zero_snr leaves no signal at the first timestep, where a model "
                "of prediction_type epsilon says nothing: use v_prediction or sample where the "
                "model was trained so, or rescale_betas_zero_snr=false"
            )
        return Mix(1 / self.signal, -self.noise / self.signal), Mix(0.0, 1.0)
