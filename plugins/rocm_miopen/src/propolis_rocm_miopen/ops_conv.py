"""Convolutions and their transposes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import cast

from propolis import OpImpl
from propolis import Priority
from propolis import dtypes
from propolis.errors import DeviceError
from propolis.ops.conv import conv_sizes
from propolis.ops.conv import conv_transpose_sizes
from propolis.ops.conv import hashable
from propolis_rocm_hip.space import space_bytes
from propolis_rocm_miopen import probe
from propolis_rocm_miopen._descriptors import KINDS
from propolis_rocm_miopen._kept import Wanted
from propolis_rocm_miopen._problem import problem
from propolis_rocm_miopen._problem import refusal
from propolis_rocm_miopen.handle import Handle


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis import Device
    from propolis import Tensor
    from propolis.ops.conv import Sizes
    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_miopen._problem import Problem

OPS: Final = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")

_SHORT: Final = frozenset(d for d in KINDS if d is not dtypes.f32)


def _of(
    x: Tensor,
    w: Tensor,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Problem:
    """What MIOpen is asked for."""
    each = hashable(stride), hashable(padding), hashable(dilation)
    sizes = conv_sizes("conv", x.shape[2:], w.shape[2:], *each)
    y = (x.shape[0], w.shape[0], *sizes)
    return problem(x.dtype, x.shape, w.shape, y, *each, groups)


def _of_transpose(
    x: Tensor,
    w: Tensor,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Problem:
    """The same of the transposed ones."""
    each = hashable(stride), hashable(padding), hashable(dilation)
    extra = hashable(output_padding)
    sizes = conv_transpose_sizes("conv_transpose", x.shape[2:], w.shape[2:], *each, extra)
    y = (x.shape[0], w.shape[1] * groups, *sizes)
    return problem(x.dtype, x.shape, w.shape, y, *each, groups, extra)


def _convolve(
    wanted: Wanted,
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """The bias is added to the rounded sum."""
    given = _of(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    _run(given, wanted, out, x, w, bias)


def _transpose(
    wanted: Wanted,
    out: Tensor,
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    """The same of the transposed ones."""
    given = _of_transpose(
        *(x, w),
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
    )
    _run(given, wanted, out, x, w, bias)


def _run(
    given: Problem, wanted: Wanted, out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None
) -> None:
    if out.numel == 0:
        return
    handle = _handle(out)
    chosen = handle.choose(given, wanted)
    if isinstance(chosen, str):
        msg = f"{out.device.id}: {given}: {chosen}"
        raise DeviceError(msg)
    added = 0 if bias is None else _pointer(bias)
    handle.convolve(chosen, _pointer(x), _pointer(w), added, _pointer(out))


def _takes(
    wanted: Wanted,
    of: Callable[..., Problem],
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    **attributes: Any,
) -> str | None:
    """None, or why not; asking for the first time chooses the solution."""
    given = of(x, w, **attributes)
    if 0 in given.y:
        return None
    why_not = refusal(given)
    if why_not is None and bias is not None:
        why_not = _refusal_of_bias(given, wanted)
    if why_not is not None:
        return why_not
    found = _handle(x).choose(given, wanted)
    return found if isinstance(found, str) else None


def _refusal_of_bias(given: Problem, wanted: Wanted) -> str | None:
    if given.dtype is dtypes.bf16:
        return "MIOpen adds no bias in bf16"
    if wanted.exact and given.dtype in _SHORT:
        return f"MIOpen rounds to {given.dtype} before it adds the bias"
    return None


def _workspace(
    wanted: Wanted,
    of: Callable[..., Problem],
    x: Tensor,
    w: Tensor,
    /,
    bias: Tensor | None = None,
    **attributes: Any,
) -> int:
    """Bytes that the solution works in."""
    del bias
    found = _handle(x).choose(of(x, w, **attributes), wanted)
    return 0 if isinstance(found, str) else space_bytes(found.kept.workspace)


def _handle(tensor: Tensor) -> Handle:
    return cast("RocmDevice", tensor.device).keep(Handle)


def _pointer(tensor: Tensor) -> int:
    """The device address of the first element."""
    return tensor.storage.ptr + tensor.layout.offset * tensor.dtype.block_bytes


def implementations(device: Device) -> Iterator[OpImpl]:
    """
    What the plugin offers a device.

    Each op three times: before the kernels, with whatever solution MIOpen ranks first; next to
    that, where numerics are to be exact, with those that round only their result; and behind the
    kernels, for those who have none installed, with MIOpen's naive solutions as well.

    Args:
        device: an AMD GPU, or one that is described.
    """
    verdict = probe.on(device)
    probe.tell(device, verdict)
    notes = "" if verdict.gemm else "; without its GEMM solutions, as rocBLAS fails on this device"
    for op in OPS:
        fn, of = (_transpose, _of_transpose) if "transpose" in op else (_convolve, _of)
        for wanted, priority in (
            (Wanted(), Priority.VENDOR),
            (Wanted(exact=True), Priority.VENDOR - 1),
            (Wanted(naive=True), Priority.GENERIC - 1),
        )[: 1 if verdict.refusal else None]:
            yield _offer(op, fn, of, wanted, priority, verdict.refusal, notes)


def _offer(
    op: str,
    fn: Callable[..., None],
    of: Callable[..., Problem],
    wanted: Wanted,
    priority: int,
    why_not: str,
    notes: str,
) -> OpImpl:
    return OpImpl(
        op=op,
        fn=partial(fn, wanted),
        device="rocm",
        dtypes=tuple(KINDS),
        unusable=why_not,
        priority=priority,
        variant=wanted.name,
        supports=partial(_takes, wanted, of),
        strided=False,
        capture_safe=True,
        exact=wanted.exact,
        spreads_nan=True,  # the naive ones are among others
        workspace=partial(_workspace, wanted, of),
        notes=f"by MIOpen, sums in f32{notes}",
    )


__all__ = ["OPS", "implementations"]
