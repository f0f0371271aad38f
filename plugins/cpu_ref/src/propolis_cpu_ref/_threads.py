"""Split long loops over threads: numpy's loops release the GIL, but use one core each."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from itertools import pairwise
from queue import Empty
from queue import SimpleQueue
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Sequence

    import numpy as np

Item = TypeVar("Item")


def over_rows(threads: int, rows: int, grain: int, work: Callable[[slice], None]) -> None:
    """
    Call ``work`` on slices that cover ``range(rows)``, one slice a thread.

    Numpy's error state, a context variable, is the caller's in all of them.

    Args:
        threads: how many may run at once.
        rows: how many rows there are.
        grain: the fewest rows worth a thread (see :func:`grain`).
        work: computes one slice; slices share nothing.
    """
    count = max(1, min(threads, rows // max(grain, 1)))
    bounds = [rows * i // count for i in range(count + 1)]
    slices = [slice(*pair) for pair in pairwise(bounds)]
    if count == 1:
        work(slices[0])
        return
    pool = _pool(threads)
    others = [pool.submit(copy_context().run, work, part) for part in slices[1:]]
    work(slices[0])
    for other in others:
        other.result()


def share(threads: int, items: Iterable[Item], work: Callable[[Iterator[Item]], None]) -> None:
    """
    Call ``work`` in several threads, each with an iterator over what is left of ``items``.

    Meanwhile BLAS uses one thread a call: products of the size of a cache are done side by
    side, with the passes over them, where one product on all cores would wait at its end
    for the slowest.  Where BLAS cannot be told so, one thread takes all items.

    Args:
        threads: how many may run at once.
        items: what is to be done, in any order; items share nothing.
        work: takes items until there are none; what it allocates before serves them all.
    """
    left = deque(items)
    count = min(threads, len(left))
    if not _blas():
        work(_taken(left))
        return
    with _serial_blas():
        if count < 2:
            work(_taken(left))
            return
        pool = _pool(threads)
        others = [pool.submit(copy_context().run, work, _taken(left)) for _ in range(count - 1)]
        try:
            work(_taken(left))
        finally:
            left.clear()  # after an error nobody begins anything new
            for other in others:
                other.exception()  # waits: no thread is left behind that writes to an output
        for other in others:
            other.result()


def with_help(
    threads: int,
    out: np.ndarray,
    parts: Sequence[slice],
    work: Callable[[slice], np.ndarray],
    size: int = 1,
) -> None:
    """
    ``out[:, part] = work(part)`` for all parts, waiting for nobody who is not at work.

    For calls of some tenths of a millisecond, of which a decode step has a hundred: where
    another program has the core, a thread that is waited for comes back some milliseconds
    later, each time.  Here the caller begins at once and helpers join when they are awake;
    they work in memory of their own, and what one has not handed in shortly after all else
    is done, the caller does itself.  Where calls of about this size have lately been faster
    alone, it asks nobody.
    The parts are the same whoever does them, and so are the bits.  Meanwhile BLAS uses one
    thread a call; nothing spins.

    Args:
        threads: how many may run at once.
        out: rows of results.
        parts: columns of ``out``, in order.
        work: gives some columns, and may be asked for the same ones twice.
        size: how much work that is, to compare calls.
    """
    with _serial_blas():
        alone = threads < 2 or len(parts) < 2 or not _blas()
        trial = _trial(size.bit_length())
        helped = not alone and trial.helped()
        start = time.perf_counter()
        if helped:
            _Shared(out, parts, work).run(threads - 1)
        else:
            for part in parts:
                out[:, part] = work(part)
        if not alone:
            trial.took((time.perf_counter() - start) / max(size, 1), helped=helped)


class _Trial:
    """
    Whether help makes calls of a size faster, by trying both: it does where cores are idle.

    A sleeping core takes a tenth of a millisecond to wake, which is much of a small call.

    Threads share it without a lock: at worst a figure is lost.
    """

    EVERY: Final = 32  # calls, of which one is done the way that was slower
    WEIGHT: Final = 1 / 16  # of the latest call in an average
    WORTH: Final = 0.85  # of the time alone: less is no noise, and idle cores give half

    def __init__(self) -> None:
        self.calls = 0
        self.seconds: dict[bool, float] = {}  # a unit of work, with help and without

    def helped(self) -> bool:
        """How to do the next call."""
        self.calls += 1
        usual = self.seconds.get(True, 0.0) <= self.WORTH * self.seconds.get(False, math.inf)
        return usual != (self.calls % self.EVERY == 0)

    def took(self, seconds: float, *, helped: bool) -> None:
        """Learn from a call."""
        before = self.seconds.get(helped, seconds)
        self.seconds[helped] = before + self.WEIGHT * (seconds - before)


@cache
def _trial(bits: int) -> _Trial:
    """Of calls whose size has so many bits."""
    del bits
    return _Trial()


class _Shared:
    """One call of :func:`with_help`."""

    def __init__(
        self, out: np.ndarray, parts: Sequence[slice], work: Callable[[slice], np.ndarray]
    ) -> None:
        self.out = out
        self.work = work
        self.context = copy_context()  # with numpy's error state
        self.left = deque(enumerate(parts))
        self.open = dict(self.left)  # parts that nobody has handed in
        self.closed = False
        self.lock = threading.Lock()
        self.done = threading.Event()

    def run(self, helpers: int) -> None:
        """The caller's side."""
        try:
            self._run(helpers)
        finally:
            with self.lock:
                self.closed = True
        for part in self.open.values():
            self.out[:, part] = self.work(part)

    def _run(self, helpers: int) -> None:
        start, own = time.perf_counter(), 0
        _call_helpers(self, helpers)
        for number, part in _taken(self.left):
            self.out[:, part] = self.work(part)
            own += 1
            with self.lock:
                del self.open[number]
        if self.open:
            # As long as a part takes: then doing it costs no more than waiting did.
            self.done.wait((time.perf_counter() - start) / max(own, 1))

    def help(self) -> None:
        """A helper's side: from the other end, and into ``out`` only while that is awaited."""
        while not self.closed:
            try:
                number, part = self.left.pop()
            except IndexError:
                return
            result = self.work(part)
            with self.lock:
                if self.closed:
                    return
                self.out[:, part] = result
                del self.open[number]
                if not self.open:
                    self.done.set()


def _help(calls: SimpleQueue[_Shared]) -> None:
    """A helper's life.  What fails here fails again for the caller, who says so."""
    while True:
        call = calls.get()
        with suppress(Exception):
            call.context.copy().run(call.help)
        del call  # lets the arrays go while it waits


def _call_helpers(call: _Shared, count: int) -> None:
    """Wake as many helpers; one that has not come for an earlier call comes for this one."""
    calls = _helpers(os.getpid(), count)
    with suppress(Empty):
        while True:
            calls.get_nowait()
    for _ in range(count):
        calls.put(call)


@cache
def _helpers(pid: int, count: int) -> SimpleQueue[_Shared]:
    """Threads that wait for calls; of this process, since a fork has none."""
    del pid
    calls: SimpleQueue[_Shared] = SimpleQueue()
    for number in range(count):
        name = f"propolis-cpu-ref-help-{number}"
        threading.Thread(target=_help, args=(calls,), name=name, daemon=True).start()
    return calls


def _taken(left: deque[Item]) -> Iterator[Item]:
    while True:
        try:
            yield left.popleft()  # atomic: threads take from the same
        except IndexError:
            return


def grain(width: int) -> int:
    """
    The fewest rows of ``width`` elements that are worth a thread in elementwise work.

    Handing over costs some 50 us, and threads that make short numpy calls wait for
    each other's GIL.
    """
    return 100_000 // max(width, 1) + 1


def limit_blas(threads: int) -> None:
    """
    Let numpy's BLAS use no more threads than that; it uses all cores by itself.

    The limit holds for the process, so nothing is done where none was asked for.
    """
    if threads < len(os.sched_getaffinity(0)):
        from threadpoolctl import threadpool_limits  # noqa: PLC0415  (seldom needed)

        threadpool_limits(threads, user_api="blas")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="propolis-cpu-ref")


@cache
def _blas() -> list[Any]:
    """
    Numpy's BLAS, where it may be told its number of threads while other threads call it.

    That is OpenBLAS with threads of its own, which numpy's wheels bring.
    """
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415  (10 ms, seldom needed)

    libraries = ThreadpoolController().select(internal_api="openblas").lib_controllers
    return [lib for lib in libraries if lib.threading_layer == "pthreads"]


_lock = threading.Lock()
_serial: list[list[int]] = []  # for each that asked: the numbers of threads found


@contextmanager
def _serial_blas() -> Iterator[None]:
    """BLAS on the thread that calls it; the last of several to leave lets it go."""
    with _lock:
        _serial.append(_serial[0] if _serial else [lib.get_num_threads() for lib in _blas()])
        for lib in _blas():
            lib.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            found = _serial.pop()
            if not _serial:
                for lib, threads in zip(_blas(), found, strict=True):
                    lib.set_num_threads(threads)
