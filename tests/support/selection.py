"""Which tests `make test` runs, and which are left to `make test-all`."""

from __future__ import annotations

import time
from collections import Counter
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest


if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdist.workermanage import WorkerController

# Where parameters are the cells of a matrix, as op x dtype x layout, and not cases of their own.
MATRICES = ("cpu_native", "cpu_ref", "rocm_kernels")
ADDED = """\
{slow} slow tests: fresh environments, hipRTC, a fault at every launch, SmolLM2 on the simulator,
and what takes about a second each (tests/long.txt)
{cell} more cells of op x dtype x layout
all live comparisons with torch, transformers and diffusers
every op and dtype of the ROCm plugins by the conformance suite, at both warp sizes"""
# What took long when it was measured (tools/long_tests.py).
LONG = frozenset((Path(__file__).parents[1] / "long.txt").read_text().splitlines())
_LEFT_OUT = pytest.StashKey[Counter[str]]()
_DEADLINE = pytest.StashKey[float]()
_LATE = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the Makefile says."""
    group = parser.getgroup("propolis")
    group.addoption("--quick", action="store_true", help="the tests of `make test`")
    group.addoption("--measure", action="store_true", help="those, and what is in tests/long.txt")
    group.addoption("--rest", action="store_true", help="the others, live comparisons aside")
    group.addoption("--seconds", type=float, help="begin no test after so many seconds")
    group.addoption("--seed", type=int, help="take their files in another order, by this number")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what took long, before anybody selects by marks."""
    if item.nodeid in LONG and not item.config.getoption("--measure"):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # folders mark their tests before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that were asked for, and count why others are left out."""
    quick = config.getoption("--quick") or config.getoption("--measure")
    if not (quick or config.getoption("--rest")):
        return
    # Of matrices, too, what is slow shows `make test` nothing.
    cells = surplus_cells(item for item in items if not item.get_closest_marker("slow"))
    why = {item: _why_not_quick(item, cells) for item in items}
    wanted = ("",) if quick else ("slow", "cell")
    kept = [item for item in items if why[item] in wanted]
    left_out = Counter(filter(None, why.values()))
    config.stash[_LEFT_OUT] = left_out
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(left_out)
    gone = set(items).difference(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    seed = config.getoption("--seed")
    if seed is None:
        # The long ones first, so that no process is left with one while others have nothing to do.
        items[:] = sorted(kept, key=lambda item: why[item] != "slow")
    else:
        # A file's tests stay together: they share what they need.
        items[:] = sorted(kept, key=lambda item: crc32(f"{seed} {item.path.name}".encode()))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Count seconds from here on, in each process."""
    seconds = session.config.getoption("--seconds")
    if seconds is not None:
        session.config.stash[_DEADLINE] = time.monotonic() + seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave a test for which there is no time, and count it."""
    config = item.config
    if time.monotonic() < config.stash.get(_DEADLINE, float("inf")):
        return None
    config.stash[_LATE] = config.stash.get(_LATE, 0) + 1
    if hasattr(config, "workeroutput"):
        config.workeroutput["late"] = config.stash[_LATE]
    return True


def _why_not_quick(item: pytest.Item, cells: set[pytest.Item]) -> str:
    for mark in ("oracle", "slow"):
        if item.get_closest_marker(mark):
            return mark
    return "cell" if item in cells else ""


def surplus_cells(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """
    Of matrices, the cells that show no new value of any parameter.

    Cells whose values are all new are chosen first, so that few are needed.
    """
    matrices: dict[str, list[tuple[pytest.Item, set[tuple[str, int]]]]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.path.parent.name in MATRICES:
            # The very objects: a product of parameters repeats them.
            values = {(name, id(value)) for name, value in item.callspec.params.items()}
            matrices[item.nodeid.partition("[")[0]].append((item, values))
    surplus = set()
    for cells in matrices.values():
        shown: set[tuple[str, int]] = set()
        chosen = set()
        for all_new in (True, False):
            for item, values in cells:
                if shown.isdisjoint(values) if all_new else not shown.issuperset(values):
                    shown |= values
                    chosen.add(item)
        surplus.update(item for item, _ in cells if item not in chosen)
    return surplus


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take what a process of pytest-xdist's counted; all leave out the same, each others late."""
    told = getattr(node, "workeroutput", {})
    stash = node.config.stash
    if "left_out" in told:
        stash[_LEFT_OUT] = Counter(told["left_out"])
    stash[_LATE] = stash.get(_LATE, 0) + told.get("late", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what more there is."""
    late = config.stash.get(_LATE, 0)
    if late:
        terminalreporter.section("left for want of time")
        terminalreporter.write_line(f"{late} tests")
    left_out = config.stash.get(_LEFT_OUT, None)
    if config.getoption("--quick") and left_out:
        terminalreporter.section("left to `make test-all`")
        terminalreporter.write_line(ADDED.format_map(left_out))
