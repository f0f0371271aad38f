"""Copies from one GPU to another, without a detour over the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import UsageError
from propolis_rocm_hip.memory import RocmStorage
from propolis_rocm_hip.streams import Event


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_rocm_hip.context import Context
    from propolis_rocm_hip.device import RocmDevice


def copy_to(tensor: Tensor, device: RocmDevice) -> Tensor:
    """
    A contiguous copy of a tensor of one AMD GPU on another; does not wait.

    Where the GPUs cannot reach each other, HIP itself copies through the host.

    Raises:
        UsageError: the tensor is not on an AMD GPU.
        OutOfMemoryError: the target has too little free memory.
    """
    source = tensor.contiguous()
    storage = source.storage
    if not isinstance(storage, RocmStorage):
        msg = f"peer.copy_to: {tensor!r} is not on an AMD GPU: tensor.to(device) copies it"
        raise UsageError(msg)
    target = device.empty(source.shape, source.dtype)
    ours, theirs = device.context, storage.context
    if not target.nbytes:
        return target
    _order(theirs, ours)
    with ours.lock:
        ours.call(
            "hipMemcpyPeerAsync",
            target.ptr,
            ours.index,
            source.ptr,
            theirs.index,
            target.nbytes,
            ours.stream,
        )
    _order(ours, theirs)  # what frees the source is queued there, and must come after
    return target


def _order(first: Context, then: Context) -> None:
    """Let what is queued on ``then`` from now on wait for what is queued on ``first``."""
    if first is not then:
        event = Event(first)
        event.record()
        with then.lock:
            then.call("hipStreamWaitEvent", then.stream, event.handle, 0)


__all__ = ["copy_to"]
