"""
Look at calls while a model runs, without a cost to those who do not look.

While a device is shadowed, its table's entries are swapped for ones that hand each call
to a watcher, which runs it.  Calls of other threads, and all calls once the block ends,
go straight to what the table bound.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from propolis.dispatch.ladder import refusal
from propolis.errors import DispatchError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.device import Device
    from propolis.dispatch.table import DispatchTable
    from propolis.ops._spec import Key
    from propolis.ops._spec import OpSpec
    from propolis.records import Provenance


class Watcher(Protocol):
    """What is told of each call in the place of the op."""

    def __call__(
        self,
        spec: OpSpec,
        key: Key,
        run: Callable[..., None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """
        Run the call, once: ``run(*args, **kwargs)``, and look before and after.

        Args:
            spec: the op.
            key: its dispatch key.
            run: what the table bound for it.
            args: destinations and arguments, as implementations receive them.
            kwargs: the keyword arguments.
        """


@contextmanager
def shadowed(device: Device, watcher: Watcher) -> Iterator[None]:
    """
    Hand every call of this thread on ``device`` to ``watcher`` inside the ``with`` block.

    What a decomposed op calls is handed over too, within the call of the whole.  A step
    that was captured earlier runs unseen: replays look nothing up.

    Raises:
        DispatchError: the device is captured or shadowed already.
    """
    table = device.table
    if table.bound is not table.plain:
        msg = f"shadow: {device.id} is being captured or shadowed already: neither nests"
        raise DispatchError(msg)
    table.bound = _Shadowed(table, watcher)
    try:
        yield
    finally:
        table.bound = table.plain


class _Shadowed(defaultdict[str, "dict[Key, Callable[..., None]]"]):
    """Table entries that hand the call over."""

    def __init__(self, table: DispatchTable, watcher: Watcher) -> None:
        super().__init__()
        self.table = table
        self.watcher = watcher
        self.thread = get_ident()

    def __missing__(self, op: str) -> dict[Key, Callable[..., None]]:
        self[op] = entries = _ShadowedOp(self, op)
        return entries


class _ShadowedOp(dict["Key", "Callable[..., None]"]):
    def __init__(self, shadow: _Shadowed, op: str) -> None:
        super().__init__()
        self.shadow = shadow
        self.op = op

    def __missing__(self, key: Key) -> Callable[..., None]:
        from propolis.ops import catalogue  # noqa: PLC0415  (ops imports tensor)

        shadow, spec = self.shadow, catalogue()[self.op]
        shadow.table.bind(spec, key)  # refuses dtypes now

        def hand_over(*args: Any, **kwargs: Any) -> None:
            # Bound anew each time: a quarantine since then changes who runs.
            run = shadow.table.bind(spec, key)
            if shadow.thread == get_ident():
                shadow.watcher(spec, key, run, args, kwargs)
            else:
                run(*args, **kwargs)

        self[key] = hand_over
        return hand_over


def server(
    table: DispatchTable, spec: OpSpec, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Provenance | None]:
    """
    Who takes a call: in words, and the implementation's provenance where it is one.

    Asked after a call that ended, it is who ran it: what raised is out of the table by then.
    """
    trace = table.trace(spec, key)
    for impl in trace.chain:
        if refusal(spec, impl, args, kwargs) is None:
            return str(impl.provenance), impl.provenance
    if trace.is_split:
        return f"decomposed into {trace.split}", None
    winner = trace.cpu.winner if trace.cpu is not None else None
    if winner is not None:
        return f"the cpu: {winner.provenance}", winner.provenance
    return "nobody", None


__all__ = ["Watcher", "server", "shadowed"]
