"""Split long loops over threads: numpy's loops release the GIL, but use one core each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


def over_rows(threads: int, rows: int, grain: int, work: Callable[[slice], None]) -> None:
    """
    Call ``work`` on slices that cover ``range(rows)``.

    Args:
        threads: how many may run at once.
        rows: how many rows there are.
        grain: rows a slice: few enough that a slice stays in a core's cache, many
            enough that the call around it costs nothing.
        work: computes one slice; slices share nothing.
    """
    slices = [slice(start, min(start + grain, rows)) for start in range(0, rows, grain)]
    if threads == 1 or len(slices) == 1:
        for part in slices:
            work(part)
        return
    for done in _pool(threads).map(work, slices):
        assert done is None  # noqa: S101  (map raises here what a slice raised)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="propolis-cpu-ref")
