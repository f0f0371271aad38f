"""The checks of ``propolis doctor`` for MIOpen, each with its remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis import CheckResult
from propolis import DoctorCheck
from propolis.errors import DeviceError
from propolis_rocm_hip import hardware
from propolis_rocm_hip.vendor import parted
from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen import probe


if TYPE_CHECKING:
    from collections.abc import Mapping

_WITHOUT: Final = "nothing to do on a machine without an AMD GPU"
_PLACES: Final = frozenset({"MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_USER_DB_PATH"})


def library() -> CheckResult:
    """Whether MIOpen is there, and computes on the GPUs of this machine."""
    try:
        gpus = list(hardware.enumerate_gpus())
    except DeviceError as exc:
        return CheckResult("skipped", f"no HIP to look beside: {exc}", _WITHOUT)
    try:
        path = _ffi.path()
    except DeviceError as exc:
        text, remedy = parted(str(exc), _ffi.INSTALL)
        return CheckResult(*(("warning", text, remedy) if gpus else ("skipped", text, _WITHOUT)))
    if not gpus:
        return CheckResult("skipped", f"no GPU to try {path} on", _WITHOUT)
    verdicts = [(gpu, probe.verdict(gpu, path)) for gpu in gpus]
    if all(verdict.refusal for _, verdict in verdicts):  # loading it may end this process
        refusals = "; ".join(v.refusal.removesuffix(f"; {v.remedy}") for _, v in verdicts)
        remedies = dict.fromkeys(verdict.remedy or _ffi.INSTALL for _, verdict in verdicts)
        return CheckResult("warning", refusals, "; ".join(remedies))
    said = [f"{path} is MIOpen {_ffi.version()}"]
    worst = False
    for gpu, verdict in verdicts:
        worst = worst or verdict != probe.Verdict()
        lacking = f"convolutions are right, without rocBLAS: {verdict.without}"
        fine = "convolutions are right" if verdict.gemm else lacking
        said.append(f"{gpu.id} ({gpu.arch}): {verdict.refusal or fine}")
    if worst:
        remedy = f"see the check rocm_blas.architecture; {_ffi.INSTALL}"
        return CheckResult("warning", "; ".join(said), remedy)
    return CheckResult("ok", "; ".join(said))


def cache(environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Whether MIOpen can keep the kernels that it compiles."""
    if environ.get("MIOPEN_DISABLE_CACHE", "0") not in ("", "0"):
        return CheckResult(
            "warning",
            "MIOPEN_DISABLE_CACHE is set: each process compiles all of its kernels again",
            "unset MIOPEN_DISABLE_CACHE",
        )
    try:
        folder = Path(environ.get("MIOPEN_CUSTOM_CACHE_DIR") or Path.home() / ".cache" / "miopen")
    except RuntimeError:  # a user without a home
        return CheckResult("warning", "no folder to keep kernels in", _elsewhere())
    there = folder
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        said = f"{folder} cannot be written: each process compiles its kernels again"
        return CheckResult("warning", said, _elsewhere())
    return CheckResult("ok", f"compiled kernels are kept in {folder}")


def _elsewhere() -> str:
    return "set MIOPEN_CUSTOM_CACHE_DIR to a folder that this user may write"


def variables(environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Which variables change what MIOpen does."""
    found = {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith("MIOPEN_") and name not in _PLACES and _ffi.DEFAULTS.get(name) != value
    }
    if not found:
        return CheckResult("ok", "no variable changes what MIOpen does")
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    return CheckResult(
        "warning", f"in force: {said}", f"unset {' '.join(found)} unless you mean it"
    )


CHECKS: Final = (
    # It may be tried twice, with rocBLAS and without.
    DoctorCheck("rocm_miopen.library", library, patience=2 * probe.PATIENCE + 1),
    DoctorCheck("rocm_miopen.cache", cache),
    DoctorCheck("rocm_miopen.variables", variables),
)
