"""What is read of a device later, while it is at what was queued meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from propolis import inflight


if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from propolis.tensor import Tensor


def numpy_later(tensor: Tensor) -> Callable[[], np.ndarray] | None:
    """
    Begin to copy a tensor's elements to the host, as they are once all that is queued now is done.

    Args:
        tensor: a few contiguous elements, of a plain dtype.

    Returns:
        What gives them, as :meth:`Tensor.numpy` does: it waits for them alone, not for what is
        queued meanwhile, as the next step.  None where nothing would be gained: on a device
        without a queue, as the CPU, of a strided view or a block format, and where it is much.

    Raises:
        DeviceLostError: the device is lost; what is returned raises it, too.
    """
    device, kind, shape = tensor.device, tensor.dtype, tensor.shape
    if device.kind == "cpu" or not tensor.is_contiguous or kind.is_block:
        return None
    start = kind.nbytes(tensor.layout.offset)
    found = device.guarded(device.memory.copy_out_later, tensor.storage, start, tensor.nbytes)
    if found is None:
        return None
    launched = device.launched
    named = found if launched is None else partial(inflight.after(launched), found)
    return lambda: device.guarded(named).view(kind.numpy).reshape(shape)


__all__ = ["numpy_later"]
