"""
Whether a library computes on a GPU of this machine: a tiny product in a child process tells.

With no machine code for the card rocBLAS abort()s the process at the first product, whatever its
files say; hipBLASLt says that it knows no algorithm.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import Config
from propolis import ProbeResult
from propolis.errors import DeviceError
from propolis_rocm_blas.libraries import ALL
from propolis_rocm_blas.libraries import ROCBLAS
from propolis_rocm_hip import trial
from propolis_rocm_hip._ffi import loaded_libraries
from propolis_rocm_hip.events import ROCM_LIBRARY_FAILS


if TYPE_CHECKING:
    from propolis import Device
    from propolis import DeviceProperties
    from propolis_rocm_blas.libraries import Library
    from propolis_rocm_hip.device import RocmDevice

VARIABLES: Final = ("ROCBLAS_", "HIPBLASLT_", "TENSILE_")
"""Beginnings of the names of environment variables that change what the libraries do."""


class Choice(NamedTuple):
    """
    Which library serves a device.

    Attributes:
        library: the one.
        why_not: why it does not after all, nor another, and what to do; empty where it does.
        instead: why those that are wanted before it do not; empty where none is.
    """

    library: Library
    why_not: str = ""
    instead: str = ""


def probe() -> ProbeResult:
    """
    Name the libraries, so that what is known of them is asked again when they change.

    Where all is asked again (``propolis plugins --reprobe``, ``propolis doctor``) they are tried
    again too.
    The plugin is never refused here: without a GPU it has nothing to do, and why one of
    several is not served stands beside its ops (:func:`choose`).
    """
    files = []
    for library in ALL.values():
        try:
            files.append(str(library.path()))
        except DeviceError:
            continue
    trial.forget(Config.load().cache_dir, files)
    return ProbeResult(ok=True, files=tuple(files))


def wanted() -> list[Library]:
    """The libraries that the setting ``blas`` allows, the first one first."""
    chosen = Config.load().blas
    return list(ALL.values()) if chosen == "auto" else [ALL[chosen]]


def choose(device: Device) -> Choice:
    """
    Which library serves a device, for as long as that lives.

    Another GPU of this machine may be served where this one, beside it, is not.
    """
    if getattr(device, "context", None) is None:  # it is described, and not present
        return Choice(ROCBLAS)
    return cast("RocmDevice", device).keep(_choice)


def _choice(device: RocmDevice) -> Choice:
    reasons: list[str] = []
    failed: list[Library] = []
    libraries = wanted()
    found = None
    for library in libraries:
        reason = refusal(library, device.properties)
        if not reason:
            found = Choice(library, instead="; ".join(reasons))
            break
        reasons.append(reason)
        failed += [library] if library.is_there() else []
    if failed:
        ROCM_LIBRARY_FAILS.emit(
            device=device.properties.id,
            library=" and ".join(library.name for library in failed),
            reason="; ".join(reasons),
            instead=found.library.name if found else "other plugins' products",
        )
    return found or Choice(libraries[0], "; ".join(reasons))


def refusal(library: Library, gpu: DeviceProperties) -> str:
    """Why a library does not compute on a GPU, and what to do; empty where it does."""
    try:
        path = library.path()
    except DeviceError as exc:
        return str(exc)
    found = fault(library, gpu, path)
    return f"{found}; {remedy(library, gpu.arch, path)}" if found else ""


def fault(library: Library, gpu: DeviceProperties, path: Path) -> str:
    """
    Why a library does not compute on a GPU; empty where it does.

    Args:
        library: the library.
        gpu: one of this machine's.
        path: the library's file.
    """
    config = Config.load()
    tried = trial.Trial(
        module="propolis_rocm_blas.trial",
        arguments=(str(gpu.index), library.name.lower()),
        depends=(path, *library.files.folders(path), *map(Path, loaded_libraries("libamdhip64"))),
        variables=VARIABLES,
        about=f"{path} on {gpu.arch}",
    )
    found = trial.outcome(tried, config.cache_dir, config.probe_timeout)
    if found.ok:
        return ""
    return f"{path} fails at a product of 4 x 4 on {gpu.id} ({gpu.arch}): {found.reason}"


def remedy(library: Library, arch: str, path: Path) -> str:
    """What helps where a library does not compute on an architecture."""
    built = library.files.archs(path)
    if arch in built:
        return (
            "it has files for that architecture: look at `propolis doctor` for variables in force, "
            f"or {library.install}"
        )
    known = ", ".join(built) or "none"
    chosen = os.environ.get(library.files.chosen)
    if chosen:
        return f"{library.files.chosen} names {chosen}, and it has files for {known}: unset it"
    return (
        f"it has files for {known}: {library.install}, in a release that is built for {arch}; "
        "others serve the products until then"
    )


__all__ = ["VARIABLES", "Choice", "choose", "fault", "probe", "refusal", "remedy", "wanted"]
