"""
Measures who is fastest, call by call, while something real runs.

    tuner = Tuner(device)
    with table.intercept(tuner):
        model(...)
    tuner.found  # a Tuned

Each class of calls (:func:`propolis.dispatch.tuned.class_of`) is measured once, where it is first
met, with its own tensors: every candidate that takes the call runs it several times, in turns.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.dispatch.base import Table
from propolis.dispatch.call import Handler
from propolis.dispatch.tuned import Choice
from propolis.dispatch.tuned import Tuned
from propolis.dispatch.tuned import class_of
from propolis.dispatch.tuned import hardware
from propolis.errors import DeviceLostError
from propolis.wording import describe


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.call import Call
    from propolis.dispatch.table import DispatchTable
    from propolis.records import OpImpl
    from propolis.tensor import Device
    from propolis.tensor import Tensor

ROUNDS: Final = 5
LONG: Final = 3e-3
"""Seconds that a candidate runs in a round, so that a clock sees them; at least one call."""

MOST: Final = 200
"""Launches of a candidate in a round."""

TOGETHER: Final = 16
"""Calls at one launch, where there is one for several."""

GAIN: Final = 0.95
"""Of the time of who leads the ladder: who takes more is no better, as far as can be told."""

DIFFERENCE: Final = 0.03
"""Of the root mean square of a result: who differs by more is not believed."""


class Tuner(Handler):
    """
    Looks at the calls on one device, and measures those that several can do.

    Attributes:
        found: what to take where, for :class:`propolis.plugins.tuned_file.TunedFile` to keep.
        refused: candidates that raised, or whose results were others, with the reason.
    """

    def __init__(
        self, device: Device, told: Callable[[Call, str, Choice | None], None] | None = None
    ) -> None:
        """
        Begin.

        Args:
            device: whose table it will look at.
            told: called with each class that was measured: the first call of it, the class and
                who is taken instead of who leads the ladder, or None.
        """
        self.device = device
        self.found = Tuned()
        self.refused: list[str] = []
        self._told = told
        self._met: set[tuple[str, tuple[str, ...], str]] = set()
        self._busy = False

    def run(self, call: Call, proceed: Callable[[], None]) -> None:
        """Measure a call of a class that was not met before; then run it."""
        kinds = call.key if isinstance(call.key, tuple) else (call.key,)
        names = tuple(d.name for d in kinds)
        what = call.spec.name, names, class_of(call)
        if not self._busy and what not in self._met:
            self._met.add(what)
            self._busy = True  # what candidates call is theirs
            try:
                self._measure(call, names, what[2])
            finally:
                self._busy = False
        proceed()

    def _measure(self, call: Call, names: tuple[str, ...], calls: str) -> None:
        table: DispatchTable = Table.of(self.device)  # type: ignore[assignment]
        candidates = table.takers(call)
        if not call.can_repeat or len(candidates) < 2:
            return
        leader = candidates[0]
        alike = [leader, *(impl for impl in candidates[1:] if _can_replace(leader, impl))]
        trusted, expected = [], None
        for impl in alike:
            try:
                table.run_by(impl, call)
                result = [_numbers(out) for out in call.outputs]
            except DeviceLostError:
                raise
            except Exception as exc:  # noqa: BLE001  (a stranger's code)
                self.refused.append(
                    f"{call.spec.name} {calls}: {_label(impl)} raised {describe(exc)}"
                )
                if impl is leader:
                    return
                continue
            expected = result if expected is None else expected
            if all(map(_are_alike, result, expected)):
                trusted.append(impl)
            else:
                self.refused.append(f"{call.spec.name} {calls}: {_label(impl)} has another result")
        if len(trusted) < 2:
            return
        seconds = self._seconds(trusted, call, table)
        best = seconds.index(min(seconds))
        choice = None
        if best > 0 and seconds[best] <= GAIN * seconds[0]:
            taken = trusted[best]
            shown = dict(zip(map(_label, trusted), seconds, strict=True))
            choice = Choice(
                taken.provenance.plugin if taken.provenance else "", taken.variant, shown
            )
            self.found.add(hardware(self.device), call.spec.name, names, calls, choice)
        if self._told is not None:
            self._told(call, calls, choice)

    def _seconds(self, candidates: list[OpImpl], call: Call, table: DispatchTable) -> list[float]:
        """Of a call, by each candidate: the least of some rounds, in which they take turns."""
        device = self.device
        launches = [self._launch(impl, call, table) for impl in candidates]

        def timed(launch: tuple[Callable[[], None], int], count: int) -> float:
            run, calls = launch
            device.guarded(device.memory.synchronize)
            started = perf_counter()
            for _ in range(count):
                run()
            device.guarded(device.memory.synchronize)
            return (perf_counter() - started) / count / calls

        counts = [_count(timed(launch, 2) * launch[1]) for launch in launches]
        rounds = [list(map(timed, launches, counts)) for _ in range(ROUNDS)]
        return [min(times) for times in zip(*rounds, strict=True)]

    def _launch(
        self, impl: OpImpl, call: Call, table: DispatchTable
    ) -> tuple[Callable[[], None], int]:
        """
        What runs a call by an implementation, and how many times.

        Some calls at one launch, as a captured step has them, where that can be: what it takes to
        launch each is no part of a step then, and would hide what the calls take.
        """
        run = partial(table.run_by, impl, call)
        copies = not impl.strided and not all(tensor.is_contiguous for tensor in call.read)
        recorder = self.device.record if impl.record is None else impl.record
        if copies or not impl.capture_safe:
            return run, 1
        joined = self.device.guarded(recorder, [run] * TOGETHER)
        return (run, 1) if joined is None else (joined, TOGETHER)


def _count(seconds: float) -> int:
    """How many launches that take so long fill a round."""
    return max(1, min(MOST, int(LONG / max(seconds, 1e-7))))


def _can_replace(leader: OpImpl, other: OpImpl) -> bool:
    """Whether a step loses nothing by another implementation but what is measured."""
    # Another form of the weight would have to be made first, and the old one let go.
    weights = other.prepare in (None, leader.prepare)
    joins = leader.record in (None, other.record)
    return weights and joins and (other.capture_safe or not leader.capture_safe)


def _label(impl: OpImpl) -> str:
    plugin = impl.provenance.plugin if impl.provenance else "?"
    return f"{plugin} {impl.variant}".rstrip()


def _numbers(out: Tensor) -> np.ndarray:
    """A copy of the result on the host; of a block format, its bytes."""
    values = out.numpy()
    return np.array(values, np.float64) if out.dtype in dtypes.FLOATS else np.array(values)


def _are_alike(result: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two results may be of the same call, differently rounded."""
    if expected.dtype != np.float64 or expected.size == 0:
        return bool((result == expected).mean() >= 1 - DIFFERENCE) if expected.size else True
    finite = np.isfinite(expected)
    if not np.isfinite(result[finite]).all():
        return False
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    error = np.sqrt(np.mean((result[finite] - expected[finite]) ** 2)) if finite.any() else 0.0
    return bool(error <= DIFFERENCE * size)


__all__ = ["Tuner"]
