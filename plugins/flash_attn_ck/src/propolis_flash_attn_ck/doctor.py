"""The check of ``propolis doctor``: is there flash attention for the GPUs of this machine?"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final

from propolis import CheckResult
from propolis.errors import DeviceError
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck._instances import ARCHS
from propolis_flash_attn_ck._instances import SIMULATED
from propolis_flash_attn_ck._instances import SIMULATED_CUDA
from propolis_rocm_hip import hardware


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable

    from propolis import DeviceProperties

_NOTHING: Final = "nothing to do: rocm_kernels serves attention there"


def code_objects(
    gpus: Callable[[], Iterable[DeviceProperties]] = hardware.enumerate_gpus,
) -> CheckResult:
    """
    Compare the architectures of the code objects with those of the GPUs.

    Args:
        gpus: gives the GPUs of this machine.
    """
    built = _code.archs()
    shipped = f"built for {', '.join(built)}" if built else "no code objects in this installation"
    try:
        present = list(gpus())
    except DeviceError as exc:
        return CheckResult("skipped", f"no GPU to compare with: {exc}; {shipped}", _NOTHING)
    if not present:
        return CheckResult("skipped", f"no GPU to compare with; {shipped}", _NOTHING)
    lacking = [gpu for gpu in present if gpu.arch in ARCHS and gpu.arch not in built]
    if lacking:
        named = "; ".join(f"{gpu.id} is {gpu.arch}" for gpu in lacking)
        remedy = "install a wheel of propolis-flash-attn-ck that has them; a checkout builds them "
        return CheckResult("warning", f"{named}: {shipped}", remedy + "by `make ck`")
    served = [f"{gpu.id} ({gpu.arch})" for gpu in present if gpu.arch in built]
    simulated = (*SIMULATED, SIMULATED_CUDA)
    stands_in = [gpu.id for gpu in present if gpu.arch.startswith(tuple(simulated))]
    if stands_in and not served:
        what = f"a kernel for the simulator stands in on {', '.join(stands_in)}; {shipped}"
        return CheckResult("ok", what)
    if not served:
        known = ", ".join(ARCHS)
        named = ", ".join(f"{gpu.id} is {gpu.arch}" for gpu in present)
        return CheckResult("skipped", f"{named}; Composable Kernel's is for {known}", _NOTHING)
    return CheckResult("ok", f"code objects for {', '.join(served)}")
