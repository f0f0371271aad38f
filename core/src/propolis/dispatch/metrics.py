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
from typing import Final

from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.device import Device
    from propolis.records import OpImpl


# Tensors of which a call touches as many elements as its other tensors have, and not all:
# their places among the arguments, destinations first.
LOOKED_INTO: Final[Mapping[str, Collection[int]]] = {
    "embedding": (2,),
    "gather": (1,),
    "index_add": (0,),
    "index_select": (1,),
    "kv_append": (0,),
    "rope": (3, 4),
    "scatter": (0,),
    "scatter_add": (0,),
}


def traffic(impl: OpImpl, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes that a call reads and writes, about: see :attr:`Cost.nbytes`."""
    tables = LOOKED_INTO.get(impl.op, ())
    whole, looked = [0], 0
    for place, value in enumerate((*args, *kwargs.values())):
        if not isinstance(value, Tensor):
            continue
        if place in tables:
            looked += value.nbytes
        else:
            payload = value.packed.get(impl.prepare) if impl.prepare is not None else None
            nbytes = getattr(payload, "nbytes", None)
            whole.append(nbytes if isinstance(nbytes, int) else value.nbytes)
    return sum(whole) + min(looked, max(whole) * len(tables))


@dataclass(slots=True)
class Cost:
    """
    What the calls of one op by one plugin on one device came to.

    Attributes:
        calls: those that returned.
        nbytes: of the tensors they were given, destinations included: of a weight that the
            implementation prepared, of what it made of it; of a table that is looked into
            (an embedding's, rope's, a cache that is written), no more than of the rest.
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
            nbytes = traffic(impl, args, kwargs)
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
        rows, left = [], dict(fallbacks)
        for (op, plugin, device), cost in costs:
            # Where several plugins serve an op on the CPU, the dearest is the likeliest.
            fell = min(cost.calls, left.get(op, 0)) if device == "cpu" else 0
            left[op] = left.get(op, 0) - fell
            where = {"op": op, "plugin": plugin, "device": device}
            rows.append({**where, **dataclasses.asdict(cost), "fallbacks": fell})
        return rows
