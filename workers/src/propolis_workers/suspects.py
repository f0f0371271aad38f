"""
Whom to suspect when a model's numbers are no numbers: the weights, or an op that is wrong.

A plugin whose op gives NaN looks the same as damaged weights from above, so the message
names who served, and the commands that tell the one from the other.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from typing import Final

import click

from propolis import dtypes
from propolis.dispatch.table import servers
from propolis.records import ESSENTIAL


if TYPE_CHECKING:
    from pathlib import Path

    from propolis import Device
    from propolis import DType

# Options of ``propolis`` itself that decide who serves what.
_CHOOSING: Final = ("plugins", "disable_plugins", "numerics")


def suspects(device: Device, model: Path, dtype: DType) -> str:
    """
    Who served a language model on a device, and the command that judges each op of it.

    Args:
        device: where it ran.
        model: its file or folder.
        dtype: what it computed in.
    """
    told = () if dtype is dtypes.f32 else ("--dtype", dtype.name)
    command = _propolis("drift", "-m", str(model), "--device", device.id, *told)
    found = f"{_served(device)}: {command} finds the op that is wrong; if none is, the weights are"
    if dtype is dtypes.f16:
        found = f"a number may be beyond f16's, which --dtype f32 has, or {found}"
    return found


def suspects_without_drift(device: Device) -> str:
    """
    The same of a model that ``propolis drift`` does not run.

    It judges the ops that language models have too; the suite judges all of a plugin.
    """
    names = [who.partition(" (")[0] for who in servers(device)]
    judged = [
        _propolis("conformance", name, "--device", device.id)
        for name in names
        if name not in ESSENTIAL
    ]
    drift = _propolis("drift", "--device", device.id)
    every = f", {' and '.join(judged)} all of a plugin" if judged else ""
    return f"{_served(device)}: {drift} judges the ops that a language model takes{every}"


def _served(device: Device) -> str:
    return f"the ops were served by {', '.join(servers(device)) or 'nobody'}"


def _propolis(*arguments: str) -> str:
    """A command with the plugins chosen as on the command line that runs now."""
    context = click.get_current_context(silent=True)
    given = (context.find_root().obj if context is not None else None) or {}
    chosen = [
        word
        for name in _CHOOSING
        if given.get(name) is not None
        for word in (f"--{name.replace('_', '-')}", given[name])
    ]
    for order in (given.get("ops") or "").split(";"):
        chosen += ["--op", order] if order else []
    return f"`{shlex.join(['propolis', *chosen, *arguments])}`"


__all__ = ["suspects", "suspects_without_drift"]
