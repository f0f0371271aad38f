"""What MIOpen's status codes mean to us: the class of our error, and the remedy."""

from __future__ import annotations

from typing import Final

from propolis.errors import DeviceError
from propolis.errors import PluginError
from propolis.errors import PropolisError


NAMES: Final = (
    "Success",
    "NotInitialized",
    "InvalidValue",
    "BadParm",
    "AllocFailed",
    "InternalError",
    "NotImplemented",
    "UnknownError",
    "UnsupportedOp",
    "GpuOperationsSkipped",
    "VersionMismatch",
)
"""Of ``miopenStatus_t``, by number."""

_LOGGED: Final = "MIOPEN_LOG_LEVEL=6 shows why; `propolis doctor` looks at the library"
_LACKS: Final = "this MIOpen lacks it: others serve it until a newer one does"
_DEVICE: Final = {
    4: "MIOpen has too little memory: use a smaller model, or end what else uses the GPU",
    5: f"MIOpen failed within: {_LOGGED}",
    6: _LACKS,
    7: f"MIOpen failed within: {_LOGGED}",
    8: _LACKS,
}
_OURS: Final = "a bug in propolis-rocm-miopen: report it"


def error_for(device: str, call: str, status: int) -> PropolisError:
    """
    Our error for a call that failed.

    Args:
        device: the device's id.
        call: the function, and what it was asked for.
        status: the ``miopenStatus_t``.

    >>> error_for("rocm:0", "miopenConvolutionForwardImmediate of f16", 3)
    PluginError('rocm:0: miopenConvolutionForwardImmediate of f16: miopenStatusBadParm (3); a ...')
    """
    name = NAMES[status] if 0 <= status < len(NAMES) else "Unknown"
    said = f"{device}: {call}: miopenStatus{name} ({status})"
    if status in _DEVICE:
        return DeviceError(f"{said}; {_DEVICE[status]}")
    return PluginError(f"{said}; {_OURS}")


__all__ = ["NAMES", "error_for"]
