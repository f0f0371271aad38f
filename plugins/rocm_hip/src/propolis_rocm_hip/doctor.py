"""The checks of ``propolis doctor`` for AMD GPUs, each with its remedy."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis import CheckResult
from propolis import Config
from propolis import DoctorCheck
from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import hardware
from propolis_rocm_hip.cache import CodeCache
from propolis_rocm_hip.libraries import Library
from propolis_rocm_hip.libraries import installed
from propolis_rocm_hip.system import System
from propolis_rocm_hip.system import overrides


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

_NO_GPU: Final = "nothing to do on a machine without an AMD GPU"
_MODERN: Final = "install ROCm 6.0 or newer, or point ROCM_PATH at it"
_RUNTIME_LIBRARIES: Final = ("libamdhip64", "libhsa-runtime64", "libhiprtc", "libamd_comgr")


def driver(system: System) -> CheckResult:
    """The amdgpu driver, and its compute part."""
    gpus = system.pci_gpus()
    if system.has("dev/kfd"):
        nodes = ", ".join(f"{n.arch} (node {n.number})" for n in system.nodes())
        return CheckResult("ok", f"/dev/kfd is there; the driver offers {nodes or 'no GPU'}")
    if system.has("dev/dxg"):
        return CheckResult("ok", "/dev/dxg is there: ROCm reaches the GPU through Windows (WSL)")
    if system.has("sys/module/amdgpu"):
        remedy = (
            "start the container with --device=/dev/kfd --device=/dev/dri"
            if system.in_container()
            else "the kernel lacks CONFIG_HSA_AMD: use a distribution's kernel, or amdgpu-dkms"
        )
        return CheckResult("error", "the amdgpu driver is loaded, but there is no /dev/kfd", remedy)
    if gpus:
        return CheckResult(
            "error",
            f"AMD GPU at {', '.join(gpus)}, but the amdgpu driver is not loaded",
            "sudo modprobe amdgpu; where it is missing, install the distribution's firmware and "
            "kernel modules or amdgpu-dkms",
        )
    return CheckResult("skipped", "no AMD GPU on the PCI bus, no /dev/kfd", _NO_GPU)


def permissions(system: System) -> CheckResult:
    """Whether this user may open the driver's files."""
    files = list(system.device_files())
    if not files:
        return CheckResult("skipped", "no /dev/kfd and no /dev/dri/renderD*", _NO_GPU)
    closed = [path for path in files if not system.accessible(path)]
    if not closed:
        return CheckResult("ok", f"{', '.join(f'/{path}' for path in files)} can be opened")
    groups = sorted({system.group(path) for path in closed})
    named = ", ".join(f"/{path} (group {system.group(path)})" for path in closed)
    if system.in_container():
        remedy = "start the container with " + " ".join(f"--group-add {group}" for group in groups)
    else:
        # The device files' groups differ between distributions; these two are AMD's.
        wanted = ",".join(dict.fromkeys(("render", "video", *groups)))
        remedy = f"sudo usermod -aG {wanted} $USER, then log out and in again"
    return CheckResult("error", f"this user may not open {named}", remedy)


def _wanted() -> bool:
    """Whether anybody here has use for a HIP library."""
    return driver(System()).status != "skipped" or bool(os.environ.get("ROCM_PATH"))


def libraries(
    found: Callable[[], list[Library]] = installed,
    loaded: Callable[[str], list[str]] = _ffi.loaded_libraries,
    version: Callable[[], tuple[int, int]] = _ffi.version,
    wanted: Callable[[], bool] = _wanted,
) -> CheckResult:
    """Which HIP library is used, how old it is, which others there are or are in this process."""
    trees = found()
    if not trees:
        return CheckResult(
            "warning",
            "no libamdhip64 in ROCM_PATH, /opt/rocm, pip's rocm-sdk or the system's search path",
            _MODERN,
        )
    present = {stem: loaded(stem) for stem in _RUNTIME_LIBRARIES}
    twice = {stem: paths for stem, paths in present.items() if len(_files(paths)) > 1}
    if twice:
        text = "; ".join(f"{stem} from {' and '.join(paths)}" for stem, paths in twice.items())
        return CheckResult(
            "error",
            f"two ROCm trees are loaded into one process: {text}",
            "keep one: uninstall the pip packages or the system's, or point ROCM_PATH at the "
            "tree that the other libraries come from",
        )
    used, *others = trees
    text = f"hip-python opens {used}"
    try:
        found_version = version()
    except DeviceError:
        found_version = _ffi.OLDEST  # it cannot be loaded: the check of the devices says why
    if found_version < _ffi.OLDEST:
        major, minor = found_version
        text += f", which is HIP {major}.{minor}"
        if not wanted():
            return CheckResult("skipped", text, _NO_GPU)
        return CheckResult("error", text, _MODERN)
    named = os.environ.get("ROCM_PATH")
    if named and not (Path(named) / "lib" / "libamdhip64.so").exists():
        return CheckResult(
            "warning",
            f"ROCM_PATH={named} has no lib/libamdhip64.so; {text}",
            "unset ROCM_PATH, or point it at a ROCm tree",
        )
    if others:
        return CheckResult(
            "warning",
            f"{text}; also installed: {', '.join(map(str, others))}",
            "other packages may load the other tree: point ROCM_PATH at one, remove the other",
        )
    return CheckResult("ok", text)


def _files(paths: list[str]) -> set[str]:
    return {str(Path(path).resolve()) for path in paths}


def devices(system: System, count: Callable[[], int] = hardware.count) -> CheckResult:
    """What HIP sees, with free and usable memory."""
    try:
        visible = count()
        if not visible and driver(system).status == "skipped":
            return CheckResult("skipped", "HIP sees no AMD GPU", _NO_GPU)
        if not visible:
            return CheckResult(
                "warning",
                "HIP sees no AMD GPU",
                "see the checks of the driver, the permissions and the visible devices",
            )
        described = [hardware.describe(index) for index in range(visible)]
    except DeviceError as exc:
        return CheckResult("error", str(exc), "see the checks of the libraries and the driver")
    texts = []
    for one in described:
        p = one.properties
        texts.append(
            f"{p.id} {p.name} ({p.extra['target']}), {one.compute_units} compute units, "
            f"{p.total_memory / 2**30:.1f} GiB {p.extra['memory']}"
        )
    return CheckResult("ok", "; ".join(texts))


def architecture(
    system: System,
    environ: Mapping[str, str] = os.environ,
    seen: Callable[[], list[str]] | None = None,
) -> CheckResult:
    """Whether HSA_OVERRIDE_GFX_VERSION hides what the GPUs are."""
    real = [node.arch for node in system.nodes()]
    forced = overrides(dict(environ))
    silicon = f"the silicon is {', '.join(real)}" if real else "the driver shows no GPU"
    if forced:
        said = ", ".join(f"{name}={environ[name]} ({arch})" for name, arch in forced.items())
        if real and set(real) == set(forced.values()):
            return CheckResult("ok", f"{said} is what the GPUs are")
        return CheckResult(
            "warning",
            f"{said} is in force, {silicon}: kernels for another architecture may hang or be wrong",
            f"unset {' '.join(forced)}: kernels that lack a code object are compiled by hipRTC",
        )
    if not real:
        return CheckResult("skipped", f"{silicon}, and nothing is overridden", _NO_GPU)
    different = sorted(set((seen or _seen)()) - set(real))
    if different:
        text = f"HIP reports {', '.join(different)}, {silicon}"
        return CheckResult("warning", text, "update ROCm and the driver to the same release")
    return CheckResult("ok", silicon)


def _seen() -> list[str]:
    try:
        return [p.arch for p in hardware.enumerate_gpus()]
    except DeviceError:
        return []  # the check of the devices says why


def visible_devices(
    system: System,
    environ: Mapping[str, str] = os.environ,
    count: Callable[[], int] = hardware.count,
) -> CheckResult:
    """Whether variables hide GPUs."""
    settings = {name: environ[name] for name in hardware.VISIBILITY if name in environ}
    present = len(system.nodes())
    if not settings:
        return CheckResult("ok", "no variable hides GPUs")
    said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    try:
        seen = count()
    except DeviceError:
        seen = 0
    if seen < present:
        return CheckResult(
            "warning",
            f"{said}: HIP sees {seen} of {present} GPUs",
            f"unset {' '.join(settings)}, or name the GPUs that are wanted",
        )
    return CheckResult("ok", f"{said} hides no GPU")


def cache() -> CheckResult:
    """The code objects that hipRTC compiled."""
    store = CodeCache.of(Config.load())
    entries = store.entries(verify=True)
    bad = [entry for entry in entries if entry.problem]
    size = sum(entry.nbytes for entry in entries)
    text = f"{len(entries)} code objects, {size / 2**20:.1f} MiB in {store.folder}"
    if bad:
        return CheckResult("warning", f"{text}; {len(bad)} are damaged", "propolis cache verify")
    return CheckResult("ok", text)


CHECKS: Final = (
    DoctorCheck("rocm_hip.driver", partial(driver, System())),
    DoctorCheck("rocm_hip.permissions", partial(permissions, System())),
    DoctorCheck("rocm_hip.libraries", libraries),
    DoctorCheck("rocm_hip.architecture", partial(architecture, System())),
    DoctorCheck("rocm_hip.visible-devices", partial(visible_devices, System())),
    DoctorCheck("rocm_hip.devices", partial(devices, System())),
    DoctorCheck("rocm_hip.cache", cache),
)
