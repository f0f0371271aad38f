"""The network at each step: what it is told, and its output with guidance, captured once."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING

import numpy as np

from propolis import Device
from propolis import Tensor
from propolis import capture
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.errors import OutOfMemoryError
from propolis_workers.sd.latents import as_f32


if TYPE_CHECKING:
    from propolis.dispatch.capture import Graph
    from propolis_workers.sd.unet import AddedConditions
    from propolis_workers.sd.unet import UNet2DCondition


@dataclass(frozen=True, slots=True)
class Guide:
    """
    What the UNet is told at every step.

    Attributes:
        context: (b, t, d), or (2 b, t, d) with the negative prompts first where the scale
            is above 1.
        added: further conditions of models that take them, of as many rows.
        scale: of the guidance; 1 or less for none.
    """

    context: Tensor
    added: AddedConditions | None = None
    scale: float = 1.0


class Predictor:
    """
    A UNet under one guide, for latents of one shape.

    On devices that have graphs of their own, the first step is captured and the others replay it:
    a step is some 700 calls, which a host queues more slowly than a good GPU runs them.
    """

    def __init__(self, unet: UNet2DCondition, guide: Guide, steps: int) -> None:
        """
        Prepare.

        Args:
            unet: the network.
            guide: what it is told.
            steps: how many are to come: one replay alone would not be worth a capture.
        """
        self._unet = unet
        self._guide = guide
        self._again = steps > 2
        self._captured: tuple[Graph, Tensor, Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, timestep: float) -> Tensor:
        """
        Predict.

        Args:
            x: (b, in_channels, h, w), as the scheduler scaled it.
            timestep: of the step.

        Returns:
            (b, out_channels, h, w), f32: away from the negative prompt by the scale.
        """
        time = np.array([timestep], np.float32)
        if self._captured is not None:
            graph, latents, at, output = self._captured
            ops.assign(latents, x)
            at.assign(time)
            graph.replay()
            return ops.copy(output)
        at = Tensor.from_numpy(time, x.device)
        if not (self._again and _replays_pay(x.device)):
            return self._predict(x, at)
        latents = ops.copy(x)
        try:
            with capture(x.device) as graph:
                output = self._predict(latents, at)
        except OutOfMemoryError:  # what the graph keeps, or the step itself: which then says so
            self._again = False
            return self._predict(x, at)
        self._captured = graph, latents, at, output
        return ops.copy(output)

    def close(self) -> None:
        """Give back what the captured step takes."""
        if self._captured is not None:
            self._captured[0].close()
            self._captured = None

    def _predict(self, x: Tensor, at: Tensor) -> Tensor:
        guide, batch = self._guide, x.shape[0]
        if guide.scale <= 1:
            return as_f32(self._unet(x, at, guide.context, guide.added))
        both = as_f32(self._unet(ops.cat([x, x], 0), at, guide.context, guide.added))
        negative, positive = (both.narrow(0, start, batch) for start in (0, batch))
        towards = ops.sub(positive, negative)
        return ops.add(negative, ops.affine(towards, guide.scale, 0.0))


def _replays_pay(device: Device) -> bool:
    """Whether it has graphs of its own, and nobody looks at calls, which then run one by one."""
    has_graphs = type(device).record is not Device.record
    return has_graphs and not DispatchTable.of(device).handlers(get_ident())


__all__ = ["Guide", "Predictor"]
