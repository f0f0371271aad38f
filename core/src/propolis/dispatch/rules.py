"""What a user decides about dispatch, over the order that priorities give."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis.errors import ConfigError
from propolis.opspec.spec import catalogue
from propolis.wording import did_you_mean
from propolis.wording import plugin_name


if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.config import Config


@dataclass(frozen=True, slots=True)
class Rules:
    """
    The user's decisions.

    Attributes:
        overrides: op -> plugins that go first, in this order.
        exact: only implementations that compute with their inputs as they are.
    """

    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exact: bool = False

    @classmethod
    def from_config(cls, config: Config, plugins: Collection[str]) -> Rules:
        """
        The rules that the settings give.

        Args:
            config: the settings.
            plugins: names of the installed plugins, loaded or not.

        Raises:
            ConfigError: an override names an op or a plugin that there is not.
        """
        overrides = {}
        for op, names in config.ops.items():
            _expect_known(f"ops names the op {op!r}, which is not there", op, catalogue())
            overrides[op] = tuple(dict.fromkeys(plugin_name(name) for name in names))
            for name in overrides[op]:
                what = f"ops.{op} names the plugin {name!r}, not installed"
                _expect_known(what, name, plugins)
        return cls(overrides, exact=config.numerics == "exact")


def _expect_known(complaint: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        hint = did_you_mean(name, known, otherwise=f"there are {listed}")
        msg = f"{complaint}: {hint}"
        raise ConfigError(msg)
