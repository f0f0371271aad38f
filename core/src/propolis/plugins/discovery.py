"""
Which plugins are installed, from metadata alone: nothing is imported.

Listing, disabling and the first phase of doctor must work when a plugin is broken,
so they stop here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import importlib_metadata

from propolis.errors import ConfigError
from propolis.records import ESSENTIAL
from propolis.wording import did_you_mean
from propolis.wording import plugin_name


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.config import Config


GROUP: Final = "propolis.plugins"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """
    An entry point of the group ``propolis.plugins``.

    Attributes:
        distribution: the installed distribution that declares it.
        name: the plugin's name.
        version: the distribution's version.
        value: what the entry point names, ``module`` or ``module:object``.
    """

    distribution: str
    name: str
    version: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def is_essential(self) -> bool:
        """Whether it cannot be blocked."""
        return ESSENTIAL.get(self.name) == self.distribution


def discover(group: str = GROUP) -> list[Candidate]:
    """
    The installed plugins, ordered by distribution and name.

    An editable install can list one entry point twice; it counts once.
    """
    found = set()
    for entry in importlib_metadata.entry_points(group=group):
        distribution, version = identity(entry.dist)
        found.add(Candidate(distribution, plugin_name(entry.name), version, entry.value))
    return sorted(found)


def identity(distribution: Any) -> tuple[str, str]:
    """Normalised name and version; ``?`` where an installation is damaged and says neither."""
    try:
        metadata = distribution.metadata or {}
    except (AttributeError, OSError, TypeError):  # how it is said depends on the release
        metadata = {}
    name, version = (metadata.get(key) or "?" for key in ("Name", "Version"))
    return re.sub(r"[-_.]+", "-", name).lower(), version


def duplicates(candidates: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    """Names that several distributions claim, each with its claimants."""
    claims: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        claims.setdefault(candidate.name, []).append(candidate)
    return {name: claimants for name, claimants in claims.items() if len(claimants) > 1}


def policy(candidates: Iterable[Candidate], config: Config) -> dict[Candidate, str]:
    """
    Why candidates are not to be loaded; those that may be are absent.

    Raises:
        ConfigError: a list names a plugin that is not installed, or blocks the CPU
            reference.
    """
    candidates = list(candidates)
    known = {c.name for c in candidates}
    allow = None if config.plugins is None else _known("plugins", config.plugins, known)
    deny = _known("disable_plugins", config.disable_plugins, known)
    blocked = deny & ESSENTIAL.keys()
    if blocked:
        msg = (
            f"disable_plugins names {', '.join(sorted(blocked))}: the CPU reference cannot be "
            f"blocked, it is what every op falls back to"
        )
        raise ConfigError(msg)
    refusals = {}
    for candidate in candidates:
        if candidate.is_essential:
            continue
        if candidate.name in deny:
            refusals[candidate] = "denied by disable_plugins (PROPOLIS_DISABLE_PLUGINS)"
        elif allow is not None and candidate.name not in allow:
            refusals[candidate] = "not in the allow list plugins (PROPOLIS_PLUGINS)"
    return refusals


def required(distribution: Any) -> list[str]:
    """The names of the distributions that one requires, those of extras left out."""
    needs = [need for need in distribution.requires or () if "extra ==" not in need]
    return [re.split(r"[^\w.-]", need)[0] for need in needs]


def module_of(name: str) -> str:
    """
    What the module of a distribution is called, where it is named after that.

    >>> module_of("Propolis-ROCm-HIP")
    'propolis_rocm_hip'
    """
    return re.sub(r"[-.]+", "_", name).lower()


def _known(setting: str, names: Iterable[str], known: set[str]) -> set[str]:
    wanted = {plugin_name(name) for name in names}
    unknown = sorted(wanted - known)
    if unknown:
        near = did_you_mean(unknown[0], known)
        hint = f"; {near}" if near else ""
        installed = ", ".join(sorted(known)) or "none"
        msg = f"{setting} names {', '.join(unknown)}, not installed; installed: {installed}{hint}"
        raise ConfigError(msg)
    return wanted
