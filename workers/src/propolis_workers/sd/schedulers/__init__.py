"""
Schedulers: the timesteps that an image visits, and the step from each to the next.

::

    scheduler = make_scheduler("euler", config)
    plan = scheduler.plan(steps=20)
    for i, timestep in enumerate(plan.timesteps):
        output = model(plan.scale_input(sample, i), timestep)
        sample = plan.step(i, output, sample, noise if plan.needs_noise(i) else None)
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import ConfigError
from propolis.wording import did_you_mean
from propolis.wording import near_matches
from propolis_workers.sd.schedulers.discrete import DDIM
from propolis_workers.sd.schedulers.discrete import DDPM
from propolis_workers.sd.schedulers.discrete import LCM
from propolis_workers.sd.schedulers.dpmpp import DPMPP2M
from propolis_workers.sd.schedulers.euler import Euler
from propolis_workers.sd.schedulers.euler import EulerAncestral
from propolis_workers.sd.schedulers.plan import Plan
from propolis_workers.sd.schedulers.scheduler import Scheduler
from propolis_workers.sd.schedulers.settings import read_settings
from propolis_workers.sd.schedulers.unipc import UniPC


if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEDULERS: dict[str, type[Scheduler[Any]]] = {
    one.name: one for one in (DDIM, DDPM, Euler, EulerAncestral, DPMPP2M, UniPC, LCM)
}

# What model folders name, and the scheduler here that is it.
CLASSES = {
    "DDIMScheduler": "ddim",
    "DDPMScheduler": "ddpm",
    "EulerDiscreteScheduler": "euler",
    "EulerAncestralDiscreteScheduler": "euler_ancestral",
    "DPMSolverMultistepScheduler": "dpmpp_2m",
    "UniPCMultistepScheduler": "unipc",
    "LCMScheduler": "lcm",
}

# Those that are not here, and what stands in for them: a method of the same kind (multistep,
# ODE or with fresh noise) that does as well with as many steps.
STAND_INS = {
    "PNDMScheduler": "dpmpp_2m",
    "DEISMultistepScheduler": "dpmpp_2m",
    "DPMSolverSinglestepScheduler": "dpmpp_2m",
    "LMSDiscreteScheduler": "dpmpp_2m",
    "HeunDiscreteScheduler": "euler",
    "KDPM2DiscreteScheduler": "euler",
    "KDPM2AncestralDiscreteScheduler": "euler_ancestral",
}

# What people say for settings whose names they do not see.
WORDS = {
    "use_karras_sigmas": "sigmas karras",
    "use_exponential_sigmas": "sigmas exponential",
    "timestep_spacing": "spacing",
}


def make_scheduler(
    name: str | None,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> Scheduler[Any]:
    """
    Make a scheduler.

    Args:
        name: one of ``SCHEDULERS``; None for what the config names.  A class that is not
            among them is stood in for where something comes close (``PNDMScheduler``, of
            Stable Diffusion 1.5, by ``dpmpp_2m``); ``Scheduler.replaced`` then holds it.
        config: the values of the model's ``scheduler_config.json``, perhaps written for
            another scheduler: keys that this one does not take mean nothing to it, and those
            that are missing have its defaults.
        overrides: settings that the user asks for, by the same names.

    Raises:
        ConfigError: there is no such scheduler, or it does not support a value or setting.
    """
    replaced = None
    if name is None:
        written = config.get("_class_name")
        name = CLASSES.get(str(written))
        if name is None and written in STAND_INS:
            name, replaced = STAND_INS[written], written
        if name is None:
            known = ", ".join([*CLASSES, *STAND_INS])
            what = "names no _class_name" if written is None else f"is for {written}"
            msg = (
                f"the scheduler config {what}; supported: {known}; choose one of "
                f"{', '.join(SCHEDULERS)} by name instead"
            )
            raise ConfigError(msg)
    if name not in SCHEDULERS:
        msg = f"there is no scheduler {name!r}; supported: {', '.join(SCHEDULERS)}{_hint(name)}"
        raise ConfigError(msg)
    cls = SCHEDULERS[name]
    _check_taken(cls, overrides or {})
    return cls(read_settings(cls.settings_class, name, config, overrides or {}), replaced)


def _hint(name: str) -> str:
    """What a name that is none of ours may stand for."""
    if name in CLASSES:
        return f"; {name} is {CLASSES[name]} here"
    if name in STAND_INS:
        return f"; {STAND_INS[name]} stands in for {name} here"
    # Some other class: what is nearest in spelling is another method.
    cutoff = 1.0 if name.endswith("Scheduler") else 0.5
    near = near_matches(name.lower(), SCHEDULERS, most=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _check_taken(cls: type[Scheduler[Any]], overrides: Mapping[str, Any]) -> None:
    """Refuse what the user asks for where it means nothing to a scheduler, in the user's words."""
    own = cls.takes()
    missing = [key for key in overrides if key not in own]
    if not missing:
        return
    # Of settings that exclude each other the one that is on was asked for.
    key = next((key for key in missing if overrides[key] is True), missing[0])
    takers = [name for name, other in SCHEDULERS.items() if key in other.takes()]
    if takers:
        word = WORDS.get(key, key)
        if word.startswith("sigmas") and overrides[key] is False:
            word = "sigmas normal"
        setting = "" if word == key else f" ({key})"
        do = "does" if len(takers) == 1 else "do"
        msg = f"scheduler {cls.name} takes no {word}{setting}; {', '.join(takers)} {do}"
        raise ConfigError(msg)
    hint = did_you_mean(key, own, most=1)
    said = f"scheduler {cls.name} has no setting {key!r}; it takes {', '.join(own)}"
    msg = "; ".join(filter(None, (said, hint)))
    raise ConfigError(msg)


__all__ = ["CLASSES", "SCHEDULERS", "STAND_INS", "Plan", "Scheduler", "make_scheduler"]
