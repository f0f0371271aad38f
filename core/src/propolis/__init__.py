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
from propolis._version import __version__ as __version__
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
from propolis.storage import DeviceProperties
from propolis.storage import Memory
from propolis.storage import Storage
from propolis.tensor import Device
from propolis.tensor import Tensor
from propolis.tensor import set_opener as _set_opener


if TYPE_CHECKING:
    from propolis.config import Config
    from propolis.dispatch.capture import capture
    from propolis.runtime import Runtime
    from propolis.runtime import default_runtime

# Settings and plugin loading bring pydantic and structlog; `import propolis` waits
# for neither.
_LAZY = {
    "Config": "propolis.config",
    "Runtime": "propolis.runtime",
    "capture": "propolis.dispatch.capture",
    "default_runtime": "propolis.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module 'propolis' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_LAZY[name]), name)


def _opened(device: str | None) -> Device:
    from propolis.runtime import default_runtime  # noqa: PLC0415  (see _LAZY)

    runtime = default_runtime()
    return runtime.cpu if device is None else runtime.device(device)


_set_opener(_opened)

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
