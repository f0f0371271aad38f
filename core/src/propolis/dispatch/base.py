"""What the parts of a dispatch table know of the whole."""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from threading import get_ident
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from propolis.errors import DispatchError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from propolis.dispatch.call import Call
    from propolis.dispatch.call import Handler
    from propolis.dispatch.fallback import FallbackLog
    from propolis.dispatch.placement import Placement
    from propolis.dispatch.quarantine import Quarantine
    from propolis.dispatch.resolve import Server
    from propolis.dispatch.resolve import Trace
    from propolis.dispatch.rules import Rules
    from propolis.dispatch.tuned import Tuned
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl
    from propolis.tensor import Device
    from propolis.tensor import Tensor


class Table(ABC):
    """
    Who serves each op on one device: :class:`propolis.dispatch.DispatchTable`.

    Attributes:
        device: the device.
        cpu: the CPU, the last rung; the device itself on the CPU.
        fallbacks: what ran on the CPU instead.
        rules: the user's decisions.
        quarantine: implementations that raised.
        tuned: who was measured to be the fastest.
        placement: who ran calls, for the placement summary.
        generation: how often the bound entries were thrown away.
    """

    device: Device
    cpu: Device
    fallbacks: FallbackLog
    rules: Rules
    quarantine: Quarantine
    tuned: Tuned
    placement: Placement
    generation: int

    @staticmethod
    def of(device: Device) -> Table:
        """The table of a device."""
        return cast("Table", device.table)

    @abstractmethod
    def trace(self, spec: OpSpec, key: Key, *, within: tuple[str, ...] = ()) -> Trace:
        """Every candidate for the op and what became of it."""

    @abstractmethod
    def server(self, call: Call) -> Server:
        """Who takes a call as things stand."""

    @abstractmethod
    def bind(self, spec: OpSpec, key: Key) -> Callable[..., None]:
        """The callable that runs the op for this key."""

    @abstractmethod
    def bind_part(self, spec: OpSpec, key: Key) -> Callable[..., None]:
        """As :meth:`bind`, for a part of another device's call."""

    @abstractmethod
    def bind_captured(self, keeper: Any, spec: OpSpec, key: Key) -> Callable[..., None]:
        """As :meth:`bind`, for one captured call, whose ``keeper`` has what it needs."""

    @abstractmethod
    def copy_into(self, target: Tensor, tensor: Tensor) -> None:
        """Copy a tensor, by the op ``copy``."""

    @abstractmethod
    def intercept(
        self, handler: Handler, *, thread: int | None = None
    ) -> AbstractContextManager[object]:
        """Hand calls to a handler, until the context that is returned ends."""

    def watch(self, handler: Handler, what: str) -> AbstractContextManager[object]:
        """
        As :meth:`intercept`, of this thread's calls, which nobody else may look at meanwhile.

        Args:
            handler: the handler.
            what: what it does, in a word for the error.

        Raises:
            DispatchError: somebody does.
        """
        self.expect_unseen(what)
        return self.intercept(handler, thread=get_ident())

    def expect_unseen(self, what: str) -> None:
        """Raise DispatchError, in whose text ``what`` begins, where this thread is watched."""
        if len(self.handlers(get_ident())) > len(self.handlers(None)):
            msg = (
                f"{what}: this thread's calls on {self.device.id} are captured or watched "
                f"already, which does not nest: end that first"
            )
            raise DispatchError(msg)

    @abstractmethod
    def handlers(self, thread: int | None) -> Collection[Handler]:
        """Who sees the calls of a thread; of None: those of every thread."""

    @abstractmethod
    def failed(self, call: Call, impl: OpImpl, error: BaseException, *, intact: bool) -> None:
        """Tell those who look that an implementation raised."""

    @abstractmethod
    def condemn(self, impl: OpImpl, key: Key, reason: str, *, lasting: bool = True) -> None:
        """Take an implementation out for these dtypes; ``lasting``: in later processes too."""


__all__ = ["Table"]
