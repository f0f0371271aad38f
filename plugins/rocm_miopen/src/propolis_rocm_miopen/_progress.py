"""Say what takes long while it does: MIOpen compiles kernels at first use, for minutes at worst."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis_rocm_hip import progress
from propolis_rocm_miopen import events


if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def told(device: str, what: str) -> AbstractContextManager[None]:
    """
    While the body runs, and once it ends, log what goes on; nothing if that is soon.

    Args:
        device: the device's id.
        what: for a person: what is done, of which shape.
    """
    return progress.told(
        lambda seconds: events.MIOPEN_WORKING.emit(device=device, what=what, seconds=seconds),
        lambda seconds: events.MIOPEN_DONE.emit(device=device, what=what, seconds=seconds),
    )


__all__ = ["told"]
