"""
What HIP's error codes mean to us: the class of our error, and the remedy.

The codes are those of ``hipError_t`` in ``hip/hip_runtime_api.h``.
"""

from __future__ import annotations

from typing import Final

from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import DeviceNotFoundError
from propolis.errors import KernelFaultError
from propolis.errors import OutOfMemoryError


NOT_READY: Final = 600
OUT_OF_MEMORY: Final = 2

# After one of these every later call on the device fails too: the runtime calls them
# sticky.  Nothing but a new process helps.
STICKY: Final = frozenset(
    {
        4,  # hipErrorDeinitialized
        214,  # hipErrorECCNotCorrectable
        700,  # hipErrorIllegalAddress
        702,  # hipErrorLaunchTimeOut
        709,  # hipErrorContextIsDestroyed
        710,  # hipErrorAssert
        719,  # hipErrorLaunchFailure
    }
)

_CLASSES: Final[dict[int, type[DeviceError]]] = {
    OUT_OF_MEMORY: OutOfMemoryError,
    100: DeviceNotFoundError,
    101: DeviceNotFoundError,
    **dict.fromkeys(STICKY, DeviceLostError),
    **dict.fromkeys((700, 702, 710, 719), KernelFaultError),
}

_DOCTOR: Final = "`propolis doctor` finds out why"
_CODE_OBJECT: Final = (
    "the code object is not for this GPU, or is damaged: unset HSA_OVERRIDE_GFX_VERSION, then "
    "`propolis cache verify`"
)
_KERNEL_FAULT: Final = (
    "a kernel failed, and everything queued after it: start the process again; "
    "it waits for each call, so as to find out which it is"
)
_CAPTURE: Final = "an implementation that says it is capture-safe is not: report it to its author"

_REMEDIES: Final[dict[int, str]] = {
    1: "a bug in the plugin that made the call: report it",
    OUT_OF_MEMORY: "use a smaller model or context, or end what else uses the GPU",
    3: _DOCTOR,
    35: "the amdgpu driver is older than this ROCm supports: update one of them",
    9: "the grid or the block is larger than the device allows: report it to the plugin's author",
    98: _CODE_OBJECT,
    100: f"no AMD GPU is visible: {_DOCTOR}",
    101: "the device is not among the visible ones: `propolis devices` lists them",
    200: _CODE_OBJECT,
    209: _CODE_OBJECT,
    214: "the GPU's memory is failing: look into the kernel log (dmesg), then reset the GPU",
    217: "the two GPUs cannot reach each other's memory: copies go through the host",
    218: _CODE_OBJECT,
    303: _CODE_OBJECT,
    500: "the code object lacks the kernel: reinstall the plugin, then `propolis cache verify`",
    700: _KERNEL_FAULT,
    701: "the kernel needs more registers or LDS than the GPU has: report it to its author",
    702: "a kernel ran too long and the driver ended it: see the kernel log (dmesg)",
    710: _KERNEL_FAULT,
    719: _KERNEL_FAULT,
    **dict.fromkeys(range(900, 909), _CAPTURE),
}


def error_for(device: str, call: str, code: int, name: str, text: str = "") -> DeviceError:
    """
    Our error for a HIP call that failed.

    Args:
        device: the device's id, or what stands for it before one is open (``"rocm"``).
        call: the function that returned the error.
        code: the ``hipError_t``.
        name: its name.
        text: HIP's own explanation.

    >>> error_for("rocm:0", "hipMalloc", 2, "hipErrorOutOfMemory")
    OutOfMemoryError('rocm:0: hipMalloc: hipErrorOutOfMemory (2); use a smaller model or ...')
    """
    kind = _CLASSES.get(code, DeviceError)
    said = f": {text}" if text and text != name else ""
    remedy = _REMEDIES.get(code, _DOCTOR)
    return kind(f"{device}: {call}: {name} ({code}){said}; {remedy}")


__all__ = ["NOT_READY", "OUT_OF_MEMORY", "STICKY", "error_for"]
