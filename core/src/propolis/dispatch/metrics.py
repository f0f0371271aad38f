"""
What each op costs, by plugin: calls, bytes and seconds.

Only a table that is made with metrics hands its calls to who measures them, so that metrics
cost nothing where nobody asked for them.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.dispatch.call import Handler
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.dispatch.call import Call
    from propolis.dispatch.resolve import Server
    from propolis.records import OpImpl
    from propolis.tensor import Device


# Tensors of which a call touches as many elements as its other tensors have, and not all:
# their places among the arguments, destinations first.
LOOKED_INTO: Final[Mapping[str, Collection[int]]] = {
    "add_rms_norm_linear_rope": (7, 8),
    "add_rms_norm_linear_rope_kv_append": (2, 9, 10),
    "add_rms_norm_qmatmul_rope": (7, 8),
    "add_rms_norm_qmatmul_rope_kv_append": (2, 9, 10),
    "embedding": (2,),
    "gather": (1,),
    "index_add": (0,),
    "index_select": (1,),
    "kv_append": (0,),
    "rope": (3, 4),
    "rope_kv_append": (0, 4, 5),
    "scatter": (0,),
    "scatter_add": (0,),
}


def traffic(impl: OpImpl, call: Call) -> int:
    """Bytes that a call reads and writes, about: see :attr:`Cost.nbytes`."""
    tables = LOOKED_INTO.get(impl.op, ())
    whole, looked = [0], 0
    for place, value in enumerate((*call.args, *call.attributes.values())):
        if not isinstance(value, Tensor):
            continue
        if place in tables:
            looked += value.nbytes
        else:
            payload = value.prepared.get(impl.prepare) if impl.prepare is not None else None
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

    def of(self, device: Device, server: Callable[[Call], Server]) -> Handler:
        """What measures the calls on a device; ``server`` says who took one."""
        return _Measuring(self, device, server)

    def add(self, where: tuple[str, str, str], nbytes: int, seconds: float) -> None:
        """Count a call."""
        with self._lock:
            cost = self.costs.setdefault(where, Cost())
            cost.calls += 1
            cost.nbytes += nbytes
            cost.seconds += seconds

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


class _Measuring(Handler):
    """Times the calls of one table that implementations take; parts of calls on their own."""

    def __init__(self, metrics: Metrics, device: Device, server: Callable[[Call], Server]) -> None:
        self._metrics = metrics
        self._device = device
        self._server = server

    def run(self, call: Call, proceed: Callable[[], None]) -> None:
        """Run a call, and count it for whoever ran it."""
        outside, _nested.seconds = getattr(_nested, "seconds", 0.0), 0.0
        started = perf_counter()
        try:
            proceed()
        finally:
            seconds = perf_counter() - started
            own, _nested.seconds = seconds - _nested.seconds, outside + seconds
        impl = self._server(call).impl
        if impl is not None:  # what is decomposed, or falls to the CPU, is counted there
            plugin = impl.provenance.plugin if impl.provenance else "?"
            where = (call.spec.name, plugin, self._device.id)
            self._metrics.add(where, traffic(impl, call), own)


_nested = threading.local()
"""Seconds of the calls that ran within the thread's current one."""
