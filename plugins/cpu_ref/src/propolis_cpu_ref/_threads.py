"""Split long loops over threads: numpy's loops release the GIL, but use one core each."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator

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
    if count < 2 or not _blas():
        work(_taken(left))
        return
    with _serial_blas():
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
