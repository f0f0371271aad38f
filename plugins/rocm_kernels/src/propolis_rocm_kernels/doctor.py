"""The check of ``propolis doctor``: are there code objects for the GPUs of this machine?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis import CheckResult
from propolis.errors import DeviceError
from propolis_rocm_hip import codeobject
from propolis_rocm_hip import hardware
from propolis_rocm_kernels import _code


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable

    from propolis import DeviceProperties


def code_objects(
    gpus: Callable[[], Iterable[DeviceProperties]] = hardware.enumerate_gpus,
) -> CheckResult:
    """
    Compare the architectures of the wheel's code objects with those of the GPUs.

    Args:
        gpus: gives the GPUs of this machine.
    """
    built = _code.archs()
    shipped = f"built for {', '.join(built)}" if built else "no code objects in this installation"
    try:
        present = list(gpus())
    except DeviceError as exc:
        return CheckResult("skipped", f"no GPU to compare with: {exc}; {shipped}", _WITHOUT)
    if not present:
        return CheckResult("skipped", f"no GPU to compare with; {shipped}", _WITHOUT)
    lacking = [
        f"{gpu.id} is {gpu.arch}"
        for gpu in present
        if gpu.arch not in built and codeobject.generic_of(gpu.arch) not in built
    ]
    if lacking:
        return CheckResult(
            "warning",
            f"{'; '.join(lacking)}: {shipped}",
            "hipRTC compiles each module on first use, for seconds, and keeps it (`propolis cache "
            "ls`); install ROCm's hipRTC, or a release of propolis-rocm-kernels that has the "
            "architecture; in a checkout `make kernels` builds it",
        )
    named = ", ".join(f"{gpu.id} ({gpu.arch})" for gpu in present)
    return CheckResult("ok", f"code objects for {named}")


_WITHOUT = "nothing to do on a machine without an AMD GPU"
