"""Split long loops over threads: numpy's loops release the GIL, but use one core each."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


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
