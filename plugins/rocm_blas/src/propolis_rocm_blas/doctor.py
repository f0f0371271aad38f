"""The checks of ``propolis doctor`` for rocBLAS, each with its remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from typing import Final

from propolis import CheckResult
from propolis import DoctorCheck
from propolis.errors import DeviceError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas import _files
from propolis_rocm_blas import probe
from propolis_rocm_hip import _ffi as hip
from propolis_rocm_hip import hardware


if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHOUT: Final = "nothing to do on a machine without an AMD GPU"
_VARIABLES: Final = ("ROCBLAS_", "TENSILE_")


def library() -> CheckResult:
    """Whether rocBLAS is there, and belongs to the HIP that is used."""
    try:
        gpus = list(hardware.enumerate_gpus())
    except DeviceError as exc:
        return CheckResult("skipped", f"no HIP to look beside: {exc}", _WITHOUT)
    try:
        path = _ffi.path()
        if not gpus:
            built = ", ".join(_files.archs(path)) or "no architecture"
            said = f"no GPU to use {path} on; it has files for {built}"
            return CheckResult("skipped", said, _WITHOUT)
        if all(probe.refusal(gpu, path) for gpu in gpus):  # loading it here may end this process
            return CheckResult("skipped", f"{path} is used on no GPU", "see the next check")
        version = _ffi.version()
    except DeviceError as exc:
        return CheckResult("warning" if gpus else "skipped", str(exc), _ffi.INSTALL)
    major, minor = hip.version()
    found = f"{path} is rocBLAS {version}, HIP is {major}.{minor}"
    if not version.startswith(f"{_ffi.expected_major()}."):
        wanted = f"rocBLAS {_ffi.expected_major()} belongs to HIP {major}"
        return CheckResult("warning", f"{found}: {wanted}", _ffi.INSTALL)
    return CheckResult("ok", found)


def architecture() -> CheckResult:
    """Whether rocBLAS has machine code for the GPUs of this machine, and computes with it."""
    try:
        gpus = list(hardware.enumerate_gpus())
        path = _ffi.path()
    except DeviceError as exc:
        return CheckResult("skipped", str(exc), "see the checks of the libraries and the devices")
    if not gpus:
        return CheckResult("skipped", "no GPU to look for files for", _WITHOUT)
    built = _files.archs(path)
    said, remedies = [], []
    for gpu in gpus:
        folder = built.get(gpu.arch)
        where = f"files in {folder}" if folder else "no files"
        refused = probe.refusal(gpu, path)
        said.append(f"{gpu.id} ({gpu.arch}): {where}, {refused or 'a product is right'}")
        if refused:
            remedies.append(probe.remedy(gpu.arch, path))
    if remedies:
        return CheckResult("warning", "; ".join(said), "; ".join(dict.fromkeys(remedies)))
    return CheckResult("ok", "; ".join(said))


def variables(environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Which variables change what rocBLAS does."""
    found = {name: value for name, value in sorted(environ.items()) if name.startswith(_VARIABLES)}
    if not found:
        return CheckResult("ok", "no variable changes what rocBLAS does")
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    return CheckResult(
        "warning", f"in force: {said}", f"unset {' '.join(found)} unless you mean it"
    )


CHECKS: Final = (
    DoctorCheck("rocm_blas.library", library),
    DoctorCheck("rocm_blas.architecture", architecture),
    DoctorCheck("rocm_blas.variables", variables),
)
