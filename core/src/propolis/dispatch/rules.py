"""What a user decides about dispatch, over the order that priorities give."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis.errors import ConfigError
from propolis.plugins.discovery import normalize


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
        from propolis.ops import catalogue  # noqa: PLC0415  (ops imports tensor)

        overrides = {}
        for op, names in config.ops.items():
            _expect_known(f"ops names the op {op!r}, which is not there", op, catalogue())
            overrides[op] = tuple(dict.fromkeys(normalize(name) for name in names))
            for name in overrides[op]:
                what = f"ops.{op} names the plugin {name!r}, not installed"
                _expect_known(what, name, plugins)
        return cls(overrides, exact=config.numerics == "exact")


def _expect_known(complaint: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3)
    listed = ", ".join(sorted(known))
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {listed or 'none'}"
    msg = f"{complaint}: {hint}"
    raise ConfigError(msg)
