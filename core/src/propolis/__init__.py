"""
Propolis: plugin-based inference for AMD GPUs, with a CPU that always works.

Plugin authors and users import from here; ``propolis.ops`` holds the ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import dtypes
from propolis import errors
from propolis import ops
from propolis.device import Device
from propolis.device import DeviceProperties
from propolis.device import Memory
from propolis.device import Storage
from propolis.dtypes import DType
from propolis.hookspecs import hookimpl
from propolis.layout import Layout
from propolis.records import API_LEVEL
from propolis.records import CheckResult
from propolis.records import DeviceProvider
from propolis.records import DoctorCheck
from propolis.records import OpImpl
from propolis.records import PluginInfo
from propolis.records import Prepared
from propolis.records import Priority
from propolis.records import ProbeResult
from propolis.records import Provenance
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from propolis.config import Config
    from propolis.graph import capture
    from propolis.runtime import Runtime
    from propolis.runtime import default_runtime

__version__ = "0.1.0"

# Settings and plugin loading bring pydantic and structlog; `import propolis` waits
# for neither.
_LAZY = {
    "Config": "propolis.config",
    "Runtime": "propolis.runtime",
    "capture": "propolis.graph",
    "default_runtime": "propolis.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module 'propolis' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = [
    "API_LEVEL",
    "CheckResult",
    "Config",
    "DType",
    "Device",
    "DeviceProperties",
    "DeviceProvider",
    "DoctorCheck",
    "Layout",
    "Memory",
    "OpImpl",
    "PluginInfo",
    "Prepared",
    "Priority",
    "ProbeResult",
    "Provenance",
    "Runtime",
    "Storage",
    "Tensor",
    "capture",
    "default_runtime",
    "dtypes",
    "errors",
    "hookimpl",
    "ops",
]
