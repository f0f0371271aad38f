"""
Every error Propolis raises on purpose.

::

    PropolisError
    ├── UsageError                what the user gave cannot be used
    │   ├── ArgumentTypeError     an argument in Python is of another type (a TypeError too)
    │   ├── ConfigError           a setting is unknown or has a wrong value
    │   ├── OpError               an op was called against its contract
    │   │   ├── DTypeError
    │   │   └── ShapeError
    │   └── ModelError            a model cannot be used
    │       ├── FileFormatError   a file is damaged, hostile or of another kind
    │       └── UnsupportedModelError
    ├── PluginError               a plugin cannot be loaded or breaks its contract
    ├── DispatchError             no implementation may run the call
    │   ├── NoImplementationError
    │   └── FallbackError         the policy or the budget forbids the CPU rung
    └── DeviceError               the hardware or its driver says no
        ├── DeviceNotFoundError
        ├── OutOfMemoryError
        └── DeviceLostError
            └── KernelFaultError  one of the kernels that were launched is to blame

A message names what was given, what is supported and what to do next, on one
line.  Command lines print it and exit with the class's ``exit_code``.
"""

from __future__ import annotations

from typing import ClassVar


class PropolisError(Exception):
    """Base of all errors that Propolis raises on purpose."""

    exit_code: ClassVar[int] = 3


class UsageError(PropolisError):
    """What the user gave cannot be used as it is."""

    exit_code: ClassVar[int] = 2


class ArgumentTypeError(UsageError, TypeError):
    """An argument in Python is of another type than those supported."""


class ConfigError(UsageError):
    """A setting is unknown, or its value is not one of those supported."""


class OpError(UsageError):
    """An op was called against its contract."""


class DTypeError(OpError):
    """An op does not take this dtype, or these dtypes together."""


class ShapeError(OpError):
    """An op does not take this shape, or these shapes together."""


class ModelError(UsageError):
    """A model cannot be used: a part is missing or does not fit."""


class FileFormatError(ModelError):
    """A file is damaged, hostile or not of the kind its name claims."""


class UnsupportedModelError(ModelError):
    """The file is well formed, but no worker here runs what it holds."""


class PluginError(PropolisError):
    """A plugin cannot be loaded, or breaks its contract with core."""


class DispatchError(PropolisError):
    """No implementation may run the call."""


class NoImplementationError(DispatchError):
    """Every candidate of an op was rejected; the message says why."""


class FallbackError(DispatchError):
    """The call would run on the CPU, and the fallback policy or its budget forbids it."""


class DeviceError(PropolisError):
    """The hardware or its driver refused."""


class DeviceNotFoundError(DeviceError):
    """No plugin provides the device that was asked for."""

    exit_code: ClassVar[int] = 2


class OutOfMemoryError(DeviceError):
    """The device has less free memory than the allocation needs."""


class DeviceLostError(DeviceError):
    """The device failed for good; only a new process can use it again."""


class KernelFaultError(DeviceLostError):
    """A kernel failed, one of those that were launched, and the device with it."""


__all__ = [
    "ArgumentTypeError",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DispatchError",
    "FallbackError",
    "FileFormatError",
    "KernelFaultError",
    "ModelError",
    "NoImplementationError",
    "OpError",
    "OutOfMemoryError",
    "PluginError",
    "PropolisError",
    "ShapeError",
    "UnsupportedModelError",
    "UsageError",
]
