"""The checks of ``propolis doctor`` for rocBLAS and hipBLASLt, each with its remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from typing import Final

from propolis import CheckResult
from propolis import DoctorCheck
from propolis.errors import DeviceError
from propolis_rocm_blas import _ffi
from propolis_rocm_blas import probe
from propolis_rocm_blas.libraries import HIPBLASLT
from propolis_rocm_blas.libraries import ROCBLAS
from propolis_rocm_hip import _ffi as hip
from propolis_rocm_hip import hardware
from propolis_rocm_hip.vendor import parted


if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHOUT: Final = "nothing to do on a machine without an AMD GPU"


def library() -> CheckResult:
    """Whether rocBLAS is there, and belongs to the HIP that is used."""
    try:
        gpus = list(hardware.enumerate_gpus())
    except DeviceError as exc:
        return CheckResult("skipped", f"no HIP to look beside: {exc}", _WITHOUT)
    try:
        path = _ffi.path()
        if not gpus:
            built = ", ".join(ROCBLAS.files.archs(path)) or "no architecture"
            said = f"no GPU to use {path} on; it has files for {built}"
            return CheckResult("skipped", said, _WITHOUT)
        if all(
            probe.fault(ROCBLAS, gpu, path) for gpu in gpus
        ):  # loading it here may end this process
            return CheckResult("skipped", f"{path} is used on no GPU", "see the next check")
        version = _ffi.version()
    except DeviceError as exc:
        said, remedy = parted(str(exc), _ffi.INSTALL)
        return CheckResult(*(("warning", said, remedy) if gpus else ("skipped", said, _WITHOUT)))
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
        if not gpus:
            return CheckResult("skipped", "no GPU to look for files for", _WITHOUT)
        path = _ffi.path()
    except DeviceError as exc:
        return CheckResult("skipped", str(exc), "see the checks of the libraries and the devices")
    built = ROCBLAS.files.archs(path)
    said, remedies = [], []
    for gpu in gpus:
        folder = built.get(gpu.arch)
        where = f"files in {folder}" if folder else "no files"
        failed = probe.fault(ROCBLAS, gpu, path)
        said.append(f"{gpu.id} ({gpu.arch}): {where}, {failed or 'a product is right'}")
        if failed:
            remedies.append(probe.remedy(ROCBLAS, gpu.arch, path))
    if remedies:
        return CheckResult("warning", "; ".join(said), "; ".join(dict.fromkeys(remedies)))
    return CheckResult("ok", "; ".join(said))


def hipblaslt() -> CheckResult:
    """Whether hipBLASLt is used, and computes where it is."""
    try:
        gpus = list(hardware.enumerate_gpus())
        if not gpus:
            return CheckResult("skipped", "no GPU to use it on", _WITHOUT)
        path = HIPBLASLT.path()
    except DeviceError as exc:
        return CheckResult("skipped", str(exc), "nothing to do where rocBLAS serves")
    allowed = probe.wanted()
    said, remedies = [], []
    for gpu in gpus:
        if HIPBLASLT not in allowed:
            said.append("not used: the setting blas is rocblas")
        elif allowed[0] is ROCBLAS and not probe.refusal(ROCBLAS, gpu):
            said.append(f"not used on {gpu.id} ({gpu.arch}): rocBLAS serves it")
        elif failed := probe.fault(HIPBLASLT, gpu, path):
            said.append(failed)
            remedies.append(probe.remedy(HIPBLASLT, gpu.arch, path))
        else:
            said.append(f"used on {gpu.id} ({gpu.arch}): a product is right")
    found = f"{path}: {'; '.join(dict.fromkeys(said))}"
    if remedies:
        return CheckResult("warning", found, "; ".join(dict.fromkeys(remedies)))
    return CheckResult("ok", found)


def variables(environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Which variables change what the libraries do."""
    names = probe.VARIABLES
    found = {name: value for name, value in sorted(environ.items()) if name.startswith(names)}
    if not found:
        return CheckResult("ok", "no variable changes what the libraries do")
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    return CheckResult(
        "warning", f"in force: {said}", f"unset {' '.join(found)} unless you mean it"
    )


CHECKS: Final = (
    DoctorCheck("rocm_blas.library", library),
    # Each may try both libraries.
    DoctorCheck("rocm_blas.architecture", architecture, patience=3),
    DoctorCheck("rocm_blas.hipblaslt", hipblaslt, patience=3),
    DoctorCheck("rocm_blas.variables", variables),
)
