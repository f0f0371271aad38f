"""
Whether MIOpen can be used, and why not: its library, and what a trial in a child process tells.

Its GEMM solutions call rocBLAS, which abort()s the process where it has no machine code for the
card.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis import Config
from propolis import ProbeResult
from propolis.errors import DeviceError
from propolis_rocm_hip import machine_code
from propolis_rocm_hip import trial
from propolis_rocm_hip._ffi import loaded_libraries
from propolis_rocm_hip.events import ROCM_LIBRARY_FAILS
from propolis_rocm_hip.vendor import parted
from propolis_rocm_miopen import _ffi


if TYPE_CHECKING:
    from propolis import Device
    from propolis import DeviceProperties

PATIENCE: Final = 6
"""Times the seconds that other probes may take: MIOpen compiles what it runs for the first time."""

WITHOUT_GEMM: Final = "without-gemm"


class Verdict(NamedTuple):
    """
    What MIOpen can do on a device.

    Attributes:
        refusal: why nothing, and the remedy; empty where it computes.
        gemm: its solutions may call rocBLAS.
        without: why they may not; empty where they may.
        remedy: the end of ``refusal``, where a trial says it.
    """

    refusal: str = ""
    gemm: bool = True
    without: str = ""
    remedy: str = ""


def probe() -> ProbeResult:
    """
    Name the library, so that what is known of it is asked again when it changes.

    Where all is asked again (``propolis plugins --reprobe``, ``propolis doctor``) it is tried
    again too.
    The plugin is never refused here: without a GPU it has nothing to do, and why one of
    several is not served stands beside its ops (:func:`on`).
    """
    try:
        file = str(_ffi.path())
    except DeviceError:
        return ProbeResult(ok=True)
    trial.forget(Config.load().cache_dir, [file])
    return ProbeResult(ok=True, files=(file,))


def verdict(gpu: DeviceProperties, path: Path) -> Verdict:
    """
    What a trial says of a GPU, now or earlier.

    Args:
        gpu: one of this machine's.
        path: MIOpen's file.
    """
    whole = _tried(gpu, path)
    if whole.ok:
        return Verdict()
    rest = _tried(gpu, path, WITHOUT_GEMM)
    if rest.ok:
        return Verdict(gemm=False, without=whole.reason)
    what = f"{path} fails at a convolution of 1 x 4 x 8 x 8 on {gpu.id} ({gpu.arch})"
    reason, remedy = parted(rest.reason, _ffi.INSTALL)
    if remedy == _ffi.INSTALL:
        remedy = f"{remedy}, built for {gpu.arch}; others serve convolutions until then"
    return Verdict(f"{what}: {reason}; {remedy}", remedy=remedy)


def _tried(gpu: DeviceProperties, path: Path, *how: str) -> trial.Outcome:
    config = Config.load()
    libraries = [path, *map(Path, loaded_libraries("libamdhip64"))]
    blas = sorted(path.parent.glob("librocblas.so*"))
    tried = trial.Trial(
        module="propolis_rocm_miopen.trial",
        arguments=(str(gpu.index), *how),
        depends=(*libraries, *blas, *machine_code.ROCBLAS.folders(path)),
        variables=("MIOPEN_", "ROCBLAS_", "TENSILE_"),
        about=" ".join((f"{path} on {gpu.arch}", *how)),
    )
    return trial.outcome(tried, config.cache_dir, config.probe_timeout * PATIENCE)


def on(device: Device) -> Verdict:
    """
    What MIOpen can do on a device; everything, where nothing can be tried.

    Another GPU of this machine may be served where this one, beside it, is not.
    """
    if getattr(device, "context", None) is None:  # it is described, and not present
        return Verdict()
    try:
        path = _ffi.path()
    except DeviceError as exc:
        return Verdict(str(exc))
    return verdict(device.properties, path)


def tell(device: Device, found: Verdict) -> None:
    """Say that a trial failed, in whole or in part."""
    if found.gemm and not found.remedy:
        return
    instead = "its solutions without rocBLAS" if found.without else "other plugins' convolutions"
    ROCM_LIBRARY_FAILS.emit(
        device=device.id,
        library="MIOpen",
        reason=found.refusal or found.without,
        instead=instead,
    )


__all__ = ["PATIENCE", "WITHOUT_GEMM", "Verdict", "on", "probe", "tell", "verdict"]
