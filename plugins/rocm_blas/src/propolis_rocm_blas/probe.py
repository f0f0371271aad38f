"""
Whether rocBLAS computes on a GPU of this machine: a tiny product in a child process tells.

With no machine code for the card the first product abort()s the process, whatever its files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from propolis import Config
from propolis import ProbeResult
from propolis.errors import DeviceError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas import _files
from propolis_rocm_hip import trial
from propolis_rocm_hip._ffi import loaded_libraries


if TYPE_CHECKING:
    from propolis import Device
    from propolis import DeviceProperties


def probe() -> ProbeResult:
    """
    Name the library, so that what is known of it is asked again when it changes.

    The plugin is never refused here: without a GPU it has nothing to do, and why one of
    several is not served stands beside its ops (:func:`unusable`).
    """
    try:
        return ProbeResult(ok=True, files=(str(_ffi.path()),))
    except DeviceError:
        return ProbeResult(ok=True)


def refusal(gpu: DeviceProperties, path: Path) -> str:
    """
    Why rocBLAS does not compute on a GPU, and what to do; empty where it does.

    Args:
        gpu: one of this machine's.
        path: rocBLAS's file.
    """
    config = Config.load()
    tried = trial.Trial(
        module="propolis_rocm_blas.trial",
        arguments=(str(gpu.index),),
        depends=(path, *_files.folders(path), *map(Path, loaded_libraries("libamdhip64"))),
        variables=("ROCBLAS_", "HIPBLASLT_", "TENSILE_"),
        about=f"{path} on {gpu.arch}",
    )
    found = trial.outcome(tried, config.cache_dir, config.probe_timeout)
    if found.ok:
        return ""
    what = f"{path} fails at a product of 4 x 4 on {gpu.id} ({gpu.arch})"
    return f"{what}: {found.reason}; {remedy(gpu.arch, path)}"


def remedy(arch: str, path: Path) -> str:
    """What helps where rocBLAS does not compute on an architecture."""
    built = _files.archs(path)
    if arch in built:
        return (
            "it has files for that architecture: look at `propolis doctor` for variables in force, "
            f"or {_ffi.INSTALL}"
        )
    known = ", ".join(built) or "none"
    return (
        f"it has files for {known}: {_ffi.INSTALL}, in a release that is built for {arch}; "
        "rocm_kernels serves the products until then"
    )


def unusable(device: Device) -> str:
    """
    Why rocBLAS serves nothing on a device; empty where it does, or where nothing can be tried.

    Another GPU of this machine may be served where this one, beside it, is not.
    """
    if getattr(device, "context", None) is None:  # it is described, and not present
        return ""
    try:
        path = _ffi.path()
    except DeviceError as exc:
        return str(exc)
    return refusal(device.properties, path)


__all__ = ["probe", "refusal", "remedy", "unusable"]
