"""Whether this machine can use AMD GPUs; asked in a child process, which may crash."""

from __future__ import annotations

import os
from pathlib import Path

from propolis import ProbeResult
from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import hardware


def probe() -> ProbeResult:
    """Load the library and count the GPUs; the answer holds while the library's file does."""
    try:
        visible = hardware.count()
        if not visible:
            hidden = [
                f"{name}={os.environ[name]}" for name in hardware.VISIBILITY if name in os.environ
            ]
            because = f" ({', '.join(hidden)} may hide them)" if hidden else ""
            reason = f"no device: HIP sees no AMD GPU{because}"
            return ProbeResult(ok=False, reason=reason)
        _ffi.require_modern()
    except DeviceError as exc:
        return ProbeResult(ok=False, reason=str(exc))
    loaded = _ffi.loaded_libraries("libamdhip64")
    return ProbeResult(ok=True, files=tuple(str(Path(path).resolve()) for path in loaded))


__all__ = ["probe"]
