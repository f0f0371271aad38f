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

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING
from typing import Final

import numpy as np

from propolis import dtypes
from propolis.dispatch import DispatchTable
from propolis.dispatch.call import Handler
from propolis.dispatch.tuned import Choice
from propolis.dispatch.tuned import Tuned
from propolis.dispatch.tuned import class_of
from propolis.dispatch.tuned import hardware
from propolis.dispatch.tuned import label
from propolis.errors import DeviceLostError
from propolis.wording import describe


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.call import Call
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

ASKED: Final = 5e-6
"""Seconds that each call pays for looking its choice up, where calls are made one by one."""

DIFFERENCE: Final = 0.03
"""Of the root mean square of a result: who differs by more is not believed."""


class Tuner(Handler):
    """
    Looks at the calls on one device, and measures those that several can do.

    Attributes:
        found: what to take where, for :class:`propolis.plugins.tuned_file.TunedFile` to keep.
        measured: device, op, dtypes and class of what was measured.
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
        self.measured: list[tuple[str, str, tuple[str, ...], str]] = []
        self.refused: list[str] = []
        self._table = DispatchTable.of(device)
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
        if not call.can_repeat:
            return
        trials = []
        for impl in self._candidates(call, calls):
            trial = self._tried(impl, call, calls)
            if trial is not None:
                trials.append(trial)
            elif not trials:
                return  # who leads raised: the call itself tells
        expected = trials[0].results[0] if trials else []
        trusted = [one for one in trials if self._is_believed(one, expected, calls)]
        if len(trusted) < 2 or trusted[0] is not trials[0]:
            return
        seconds = self._seconds(trusted)
        self.measured.append((hardware(self.device), call.spec.name, names, calls))
        best = seconds.index(min(seconds))
        least = GAIN * seconds[0] - (0 if trusted[best].together > 1 else ASKED)
        choice = None
        if best > 0 and seconds[best] <= least:
            taken = trusted[best].impl
            shown = {label(one.impl): time for one, time in zip(trusted, seconds, strict=True)}
            plugin = taken.provenance.plugin if taken.provenance else ""
            choice = Choice(plugin, taken.variant, shown)
            self.found.add(*self.measured[-1], choice)
        if self._told is not None:
            self._told(call, calls, choice)

    def _candidates(self, call: Call, calls: str) -> list[OpImpl]:
        """Who takes the call, and could do so in a step; who leads first."""
        found: list[OpImpl] = []
        try:
            found += self._table.takers(call)
        except DeviceLostError:
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code)
            self.refused.append(f"{call.spec.name} {calls}: somebody asked raised {describe(exc)}")
        return [impl for impl in found if _can_replace(found[0], impl)]

    def _tried(self, impl: OpImpl, call: Call, calls: str) -> _Trial | None:
        """
        What runs a call by an implementation, and its results; None where it raised.

        Some calls at one launch, as a captured step has them, where that can be: what it takes to
        launch each is no part of a step then, and would hide what the calls take.
        """
        device, run = self.device, partial(self._table.run_by, impl, call)
        copies = not impl.strided and not all(tensor.is_contiguous for tensor in call.read)
        recorder = device.record if impl.record is None else impl.record
        try:
            results = [self._result(run, call)]
            started = perf_counter()
            run()
            device.guarded(device.memory.synchronize)
            together = max(1, min(TOGETHER, int(LONG / max(perf_counter() - started, 1e-7))))
            launch = None
            if impl.capture_safe and not copies and together > 1:
                launch = device.guarded(recorder, [run] * together)
            if launch is not None:
                results.append(self._result(launch, call))
                return _Trial(impl, launch, together, results)
        except DeviceLostError:
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001  (a stranger's code)
            self._leave(impl, calls, f"raised {describe(exc)}")
            return None
        return _Trial(impl, run, 1, results)

    def _result(self, run: Callable[[], None], call: Call) -> list[np.ndarray]:
        """What a call gives, over what is unlike any result: who writes nothing is found out."""
        for out in call.outputs:
            _spoil(out)
        run()
        return [_numbers(out) for out in call.outputs]

    def _is_believed(self, trial: _Trial, expected: list[np.ndarray], calls: str) -> bool:
        for result in trial.results:
            if not all(map(_are_alike, result, expected)):
                self._leave(trial.impl, calls, "has another result")
                return False
        return True

    def _leave(self, impl: OpImpl, calls: str, why: str) -> None:
        self.refused.append(f"{impl.op} {calls}: {label(impl)} {why}")

    def _seconds(self, trials: list[_Trial]) -> list[float]:
        """Of a call, by each: the least of some rounds, in which they take turns."""
        device = self.device

        def timed(trial: _Trial, count: int) -> float:
            device.guarded(device.memory.synchronize)
            started = perf_counter()
            for _ in range(count):
                trial.launch()
            device.guarded(device.memory.synchronize)
            return (perf_counter() - started) / count / trial.together

        counts = [_count(timed(trial, 1) * trial.together) for trial in trials]
        rounds = [list(map(timed, trials, counts)) for _ in range(ROUNDS)]
        return [min(times) for times in zip(*rounds, strict=True)]


@dataclass(frozen=True, slots=True)
class _Trial:
    """An implementation, what runs the call by it, ``together`` times, and what came of it."""

    impl: OpImpl
    launch: Callable[[], None]
    together: int
    results: list[list[np.ndarray]]


def _count(seconds: float) -> int:
    """How many launches that take so long fill a round."""
    return max(1, min(MOST, int(LONG / max(seconds, 1e-7))))


def _can_replace(leader: OpImpl, other: OpImpl) -> bool:
    """Whether a step loses nothing by another implementation but what is measured."""
    # Another form of the weight would have to be made first, or the file's brought back.
    weights = other.prepare is leader.prepare
    joins = leader.record in (None, other.record)
    return weights and joins and (other.capture_safe or not leader.capture_safe)


def _spoil(out: Tensor) -> None:
    """Write what is no result: NaN, or a pattern of bits."""
    if out.dtype in dtypes.FLOATS:
        out.assign(np.full(out.shape, np.nan, out.dtype.numpy))
    elif not out.dtype.is_block:
        size = out.dtype.block_bytes
        pattern = np.frombuffer(b"\xa5" * size, out.dtype.numpy)[0]
        out.assign(np.full(out.shape, pattern, out.dtype.numpy))


def _numbers(out: Tensor) -> np.ndarray:
    """A copy of the result on the host; of a block format, its bytes."""
    values = out.numpy()
    return np.array(values, np.float64) if out.dtype in dtypes.FLOATS else np.array(values)


def _are_alike(result: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two results may be of the same call, differently rounded."""
    if expected.dtype != np.float64 or expected.size == 0:
        return bool((result == expected).all())
    finite = np.isfinite(expected)
    if not np.isfinite(result[finite]).all():
        return False
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    error = np.sqrt(np.mean((result[finite] - expected[finite]) ** 2)) if finite.any() else 0.0
    return bool(error <= DIFFERENCE * size)


__all__ = ["Tuner"]
