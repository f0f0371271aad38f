"""
What each op costs, by plugin: calls, bytes and seconds.

Only a table that is made with metrics holds functions that measure; in any other the
plugins' own are bound, so that metrics cost nothing where nobody asked for them.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING
from typing import Any

from propolis.tensor import Tensor


if TYPE_CHECKING:
    from propolis.device import Device
    from propolis.records import OpImpl


@dataclass(slots=True)
class Cost:
    """
    What the calls of one op by one plugin on one device came to.

    Attributes:
        calls: those that returned.
        nbytes: of the tensors they were given, destinations included.
        seconds: on the host's clock: where a device queues work, the time to queue it.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Metrics:
    """
    The costs of a process.

    Attributes:
        costs: by (op, plugin, device id).
    """

    def __init__(self) -> None:
        self.costs: dict[tuple[str, str, str], Cost] = {}
        self._lock = threading.Lock()

    def measured(self, impl: OpImpl, device: Device) -> OpImpl:
        """The same implementation, whose function is timed and counted."""
        plugin = impl.provenance.plugin if impl.provenance else "?"
        where = (impl.op, plugin, device.id)
        fn = impl.fn

        def run(*args: Any, **kwargs: Any) -> None:
            started = perf_counter()
            fn(*args, **kwargs)
            seconds = perf_counter() - started
            tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
            nbytes = sum(tensor.nbytes for tensor in tensors)
            with self._lock:
                cost = self.costs.setdefault(where, Cost())
                cost.calls += 1
                cost.nbytes += nbytes
                cost.seconds += seconds

        return dataclasses.replace(impl, fn=run)

    def rows(self, fallbacks: dict[str, int]) -> list[dict[str, Any]]:
        """
        The costs as records, the dearest first.

        Args:
            fallbacks: calls that fell to the CPU, by op.
        """
        with self._lock:
            costs = sorted(self.costs.items(), key=lambda item: (-item[1].seconds, item[0]))
            return [
                {
                    "op": op,
                    "plugin": plugin,
                    "device": device,
                    **dataclasses.asdict(cost),
                    "fallbacks": fallbacks.get(op, 0) if device == "cpu" else 0,
                }
                for (op, plugin, device), cost in costs
            ]
