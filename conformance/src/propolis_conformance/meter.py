"""What an implementation does while it runs: how often it is called, what it allocates."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.records import OpImpl
    from propolis.tensor import Device


class Meter:
    """
    Stands before an implementation's function.

    Attributes:
        impl: the implementation, metered.
        calls: how often its function ran.
        peak: the most bytes that it had allocated at once in the last call measured.
    """

    def __init__(self, impl: OpImpl, device: Device) -> None:
        self.calls = 0
        self.peak = 0
        self._fn = impl.fn
        self._device = device
        self._measuring = False
        self.impl = dataclasses.replace(impl, fn=self._run)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside the block, ``peak`` is taken of each call."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def _run(self, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        if not self._measuring:
            self._fn(*args, **kwargs)
            return
        live = 0
        self.peak = 0
        plain = self._device.memory.allocate

        def freed(nbytes: int) -> None:
            nonlocal live
            live -= nbytes

        def allocate(nbytes: int) -> Any:
            nonlocal live
            storage = plain(nbytes)
            live += nbytes
            self.peak = max(self.peak, live)
            with contextlib.suppress(TypeError):  # it cannot say when it is freed: it is held
                weakref.finalize(storage, freed, nbytes).atexit = False
            return storage

        with replaced(self._device.memory, "allocate", allocate):
            self._fn(*args, **kwargs)


@contextmanager
def replaced(memory: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """One method of an allocator replaced inside the block; not where it has slots."""
    try:
        before = vars(memory).get(name)
        setattr(memory, name, function)
    except (AttributeError, TypeError):
        yield
        return
    try:
        yield
    finally:
        if before is None:
            delattr(memory, name)
        else:
            setattr(memory, name, before)
