"""Children that judge units, watched: what aborts or hangs is one failed unit."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty
from queue import SimpleQueue
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import PluginError
from propolis.errors import UsageError
from propolis_conformance.cases import decode
from propolis_conformance.cases import encode
from propolis_conformance.judge import SHRINKING
from propolis_conformance.judge import Result
from propolis_conformance.process import START
from propolis_conformance.process import ChildEndedError
from propolis_conformance.process import ChildProcess
from propolis_conformance.shrink import shrink


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis_conformance.cases import Case

# Most units take far less than their share of the time, so one may take more; and each
# is judged at least for a moment.
_GENEROUS, _LEAST = 32.0, 0.5
# Seconds that threads have to end in, once their children are dead.
_LEAVING = 1.0


TIMEOUT: Final = 60.0
"""Seconds without a sign of life, where nobody says how many."""


@dataclass(frozen=True, slots=True)
class Request:
    """
    What to judge, and how.

    Attributes:
        plugin: its name.
        device: where; None for the first device that it implements ops for.
        seed: of all random numbers.
        quick: leave the random cases out, and judge each dtype of a parameter once instead
            of all combinations.
        timeout: seconds without a sign of life until a child counts as hung.
        save: folder that keeps the smallest failing case of each unit; None for none.
        scale: of what is large or many, above 0; None for what the device says of itself
            (``conformance_scale`` among its properties' extra), or 1.
        seconds: how long all may take, about: a unit that takes far more than its share
            leaves cases out; None for a minute when quick, else ten.
        shard: which of how many parts of all units, the first being 1, of equal size.
    """

    plugin: str
    device: str | None = None
    seed: int = 0
    quick: bool = False
    timeout: float = TIMEOUT
    save: str | None = None
    scale: float | None = None
    seconds: float | None = None
    shard: tuple[int, int] = (1, 1)

    @property
    def budget(self) -> float:
        """Seconds for all units together."""
        return self.seconds or (60.0 if self.quick else 600.0)


def scale_of(request: Request, facts: Mapping[str, Any]) -> float:
    """
    What was asked for, or what the device says of itself, or 1.

    Raises:
        PluginError: what the device says is no share.
    """
    said = facts["device_extra"].get("conformance_scale", "1")
    try:
        scale = float(said)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 1:
        msg = (
            f"plugin {facts['plugin']}: conformance_scale of {facts['device']} is {said!r}; it "
            f"must be a number above 0, at most 1"
        )
        raise PluginError(msg)
    return request.scale or scale


class _StoppedError(Exception):
    """No child may start any more."""


class Children:
    """Those of one run, whichever thread has them."""

    def __init__(self) -> None:
        self._all: list[Child] = []
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, child: Child) -> None:
        """
        One more.

        Raises:
            _StoppedError: it comes too late, and is dead.
        """
        with self._lock:
            self._all.append(child)
            if not self._stopped:
                return
        child.close()
        raise _StoppedError

    def expect_more(self) -> None:
        """
        Go on, unless all have been stopped.

        Raises:
            _StoppedError: they have.
        """
        if self._stopped:
            raise _StoppedError

    def work(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all, each in a thread of its own; the first exception of one ends the others."""
        ends: SimpleQueue[BaseException | None] = SimpleQueue()

        def end(work: Callable[[], None]) -> None:
            try:
                work()
                ends.put(None)
            except BaseException as exc:  # noqa: BLE001  (raised where it is read)
                ends.put(exc)

        # Daemons: a child that the system cannot kill, as on a GPU that hangs, keeps nobody.
        self._threads = [threading.Thread(target=end, args=(w,), daemon=True) for w in works]
        for thread in self._threads:
            thread.start()
        for _ in works:
            if (exc := ends.get()) is not None:
                raise exc

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Whatever ends the block early, such as Ctrl-C, ends them; a second Ctrl-C waits."""
        try:
            yield
        except BaseException:
            main = threading.current_thread() is threading.main_thread()
            before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
            try:
                self._stop()
            finally:
                if main:
                    signal.signal(signal.SIGINT, before)
            raise

    def _stop(self) -> None:
        """Kill them all, whatever they do: a thread that waits for one goes on, and ends."""
        with self._lock:
            self._stopped = True
            for child in self._all:
                child.kill()
        until = time.monotonic() + _LEAVING
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


class Child(ChildProcess):
    """
    A child that judges a plugin.

    Attributes:
        units: (unit, op) of everything the plugin declares here.
        facts: about the plugin and the device.
    """

    def __init__(self, request: Request, children: Children | None = None) -> None:
        super().__init__("propolis_conformance.child", request.timeout)
        self._request, self._children = request, children or Children()
        self._children.add(self)
        try:
            self.send(plugin=request.plugin, device=request.device, quick=request.quick)
            hello = self.receive(max(request.timeout, START))
        except ChildEndedError as exc:
            self.close()
            msg = f"plugin {request.plugin} cannot be judged: loading it {exc}"
            raise PluginError(msg) from exc
        if "refused" in hello:
            self.close()
            raise (UsageError if hello["exit_code"] == 2 else PluginError)(hello["refused"])
        self.units: list[tuple[str, str]] = [(u, op) for u, op in hello["units"]]
        self.facts: dict[str, Any] = hello["facts"]

    def judge(self, unit: str, seconds: float = math.inf) -> Result:
        """
        The result of one unit; that a case kills the child is one.

        The child is of no further use then: see ``usable``.

        Args:
            unit: its name.
            seconds: after which no further case begins.

        Raises:
            UsageError: a case cannot be saved.
        """
        request = self._request
        scale = scale_of(request, self.facts)
        plan = {
            "seed": request.seed,
            "quick": request.quick,
            "scale": scale,
            "seconds": seconds,
            "save": request.save,
        }
        said: dict[str, Any] = {"case": "", "encoded": None}
        try:
            self.send(unit=unit, plan=plan)
            while "result" not in (answer := self.receive()):
                if "refused" in answer:
                    msg = f"--save-failures: {answer['refused']}"
                    raise UsageError(msg)
                said = answer
            return Result(**answer["result"])
        except ChildEndedError as exc:
            self.close()
            last, failure = said["case"], exc
            if said["encoded"] is not None:
                op = unit.partition("[")[0]
                last, failure = self._shrink(unit, decode(said["encoded"], op), exc)
            return Result(unit, "failed", 1, check=failure.check, message=str(failure), case=last)

    def _shrink(
        self, unit: str, case: Case, failure: ChildEndedError
    ) -> tuple[str, ChildEndedError]:
        """The smallest case that ends a process the same way, each in a new one if need be."""
        child: Child | None = None

        def ends(smaller: Case, save: str | None = None) -> ChildEndedError | None:
            nonlocal child
            if child is None or not child.usable:
                child = Child(self._request, self._children)
            try:
                encoded = encode(smaller, unit.partition("[")[0])
                child.send(unit=unit, case=encoded, save=save)
                child.receive()
            except ChildEndedError as exc:
                child.close()
                return exc if exc.check == failure.check else None
            return None

        try:
            if failure.check == "hung" and self._request.timeout > SHRINKING / 4:
                return str(case), failure
            smallest, failure = shrink(case, failure, ends, SHRINKING)
            if self._request.save is not None and smallest != case:
                ends(smallest, self._request.save)  # what is on disk is the last that ran
            return str(smallest), failure
        except (PluginError, UsageError):  # the crash left nothing that could be loaded again
            return str(case), failure
        finally:
            if child is not None:
                child.close()


def run(
    request: Request,
    ops: Sequence[str] = (),
    *,
    workers: int | None = None,
    progress: Callable[[Result], None] = lambda _: None,
) -> tuple[list[Result], dict[str, Any]]:
    """
    Judge a plugin.

    Args:
        request: the plugin, and how.
        ops: only these ops, or units (``"add[f32]"``); all when empty.
        workers: how many processes; one a core when None.
        progress: told each result as it comes.

    Returns:
        The results in the order the plugin declares its ops, and facts about it.

    Raises:
        UsageError: there is no such plugin, or it implements no such op here, or none in the shard;
            or a case cannot be saved.
        PluginError: it cannot be loaded.
    """
    children = Children()
    with children.stopping():
        first = Child(request, children)
        try:
            names = _chosen(first.units, ops, request)
        except UsageError:
            first.close()
            raise
        queue: SimpleQueue[str] = SimpleQueue()
        for name in names:
            queue.put(name)
        found: dict[str, Result] = {}
        count = max(1, min(workers or len(os.sched_getaffinity(0)), len(names)))
        until = time.monotonic() + request.budget

        def work(child: Child | None) -> None:
            try:
                while True:
                    try:
                        name = queue.get_nowait()
                    except Empty:
                        return
                    if child is None or not child.usable:
                        child = Child(request, children)
                    left = until - time.monotonic()
                    share = left * count / (len(names) - len(found))
                    judged = child.judge(name, max(_LEAST, min(_GENEROUS * share, left)))
                    children.expect_more()
                    found[name] = judged
                    progress(judged)
            finally:
                if child is not None:
                    child.close()

        children.work([partial(work, c) for c in (first, *(None,) * (count - 1))])
    return [found[name] for name in names], first.facts


def _chosen(units: Sequence[tuple[str, str]], ops: Sequence[str], request: Request) -> list[str]:
    plugin, (number, shards) = request.plugin, request.shard
    unknown = [op for op in ops if not any(op in unit for unit in units)]
    if unknown:
        known = ", ".join(dict.fromkeys(op for _, op in units))
        msg = f"{plugin} does not implement {', '.join(unknown)} here; it implements: {known}"
        raise UsageError(msg)
    # Every so many of all: whatever is chosen, a unit is in the same shard.
    own = units[number - 1 :: shards]
    chosen = [name for name, op in own if not ops or op in ops or name in ops]
    if units and not chosen:
        msg = (
            f"shard {number}/{shards} of {plugin} has none of {', '.join(ops) or 'its units'}: "
            f"give fewer shards, or another"
        )
        raise UsageError(msg)
    return chosen
