"""Give handles back to HIP from finalisers, which must not raise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from propolis.errors import DeviceError


if TYPE_CHECKING:
    from propolis_rocm_hip.context import Context


def release(context: Context, name: str, handle: int) -> None:
    """Call a function that destroys; a device that is lost has nothing left to give back."""
    with contextlib.suppress(DeviceError):
        context.call(name, handle)


__all__ = ["release"]
