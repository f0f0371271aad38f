"""Which tests `make test` runs, and which are left to `make test-all`."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

import pytest


if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdist.workermanage import WorkerController

# Where parameters are the cells of a matrix, as op x dtype x layout, and not cases of their own.
MATRICES = ("cpu_native", "cpu_ref", "rocm_kernels")
ADDED = """\
{slow} slow tests: fresh environments, hipRTC, a fault at every launch, SmolLM2 on the simulated GPU
{cell} more cells of op x dtype x layout
all live comparisons with torch, transformers and diffusers
every op and dtype of the ROCm plugins by the conformance suite, at both warp sizes"""
_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the Makefile says."""
    group = parser.getgroup("propolis")
    group.addoption("--quick", action="store_true", help="the tests of `make test`")
    group.addoption("--rest", action="store_true", help="the others, live comparisons aside")
    group.addoption("--part", metavar="K/N", help="of those tests the K-th of N parts, from 1")


@pytest.hookimpl(trylast=True)  # folders mark their tests before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that were asked for, and count why others are left out."""
    quick = config.getoption("--quick")
    if not (quick or config.getoption("--rest")):
        return
    cells = surplus_cells(items)
    why = {item: _why_not_quick(item, cells) for item in items}
    wanted = ("",) if quick else ("slow", "cell")
    part, parts = map(int, (config.getoption("--part") or "1/1").split("/"))
    # By their names, so that all are of one part, whichever others there are.
    mine = [crc32(item.nodeid.encode()) % parts == part - 1 for item in items]
    kept = [item for item, own in zip(items, mine, strict=True) if own and why[item] in wanted]
    left_out = Counter(filter(None, why.values()))
    config.stash[_LEFT_OUT] = left_out
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(left_out)
    gone = set(items).difference(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    # The long ones first, so that no process is left with one while the other has nothing to do.
    items[:] = sorted(kept, key=lambda item: why[item] != "slow")


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
    """Take what a process of pytest-xdist's counted; all of them count the same."""
    left_out = getattr(node, "workeroutput", {}).get("left_out")
    if left_out is not None:
        node.config.stash[_LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what more there is."""
    left_out = config.stash.get(_LEFT_OUT, None)
    if config.getoption("--quick") and left_out:
        terminalreporter.section("left to `make test-all`")
        terminalreporter.write_line(ADDED.format_map(left_out))
