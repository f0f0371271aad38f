"""What `make test` leaves out of matrices is shown by what it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from selection import LONG
from selection import surplus_cells


class Item(SimpleNamespace):
    """What pytest collects, as far as the selection looks; equal to itself alone."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def matrix(folder: str, *values: list) -> list[Item]:
    """A test with a parameter for each list of values."""
    path = Path(folder) / "test_x.py"
    return [
        Item(
            nodeid=f"{path}::test_x[{number}]",
            path=path,
            callspec=SimpleNamespace(params=dict(enumerate(cell))),
        )
        for number, cell in enumerate(product(*values))
    ]


@pytest.mark.parametrize("sizes", [(5,), (3, 4), (2, 6, 3), (1, 7)])
def test_each_value_is_shown(sizes) -> None:
    """Each value of each parameter is in a cell that stays, and few cells stay."""
    values = [[f"{name}{n}" for n in range(size)] for name, size in zip("abc", sizes, strict=False)]
    cells = matrix("cpu_ref", *values)
    kept = [c for c in cells if c not in surplus_cells(cells)]
    for number, wanted in enumerate(values):
        assert set(wanted) == {c.callspec.params[number] for c in kept}
    assert len(kept) <= max(sizes) + min(sizes)


def test_cases_are_no_cells() -> None:
    """Elsewhere parameters are cases of their own, and all stay."""
    assert set() == surplus_cells(matrix("core", ["a", "b"], ["c", "d"]))
    assert set() == surplus_cells(
        [Item(nodeid="cpu_ref/test_x.py::test_y", path=Path("cpu_ref/x"))]
    )


def selected(folder, *options: str) -> str:
    """What pytest prints of three files of four slow tests."""
    source = "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('n', range(4))\n"
    for name in "abc":
        (folder / f"test_{name}.py").write_text(source + "def test_it(n): ...\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--rest", "-p", "selection", *options, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.slow
def test_seeds_are_orders(tmp_path) -> None:
    """A seed takes all tests, those of a file together, and its files in an order of its own."""
    orders = set()
    for seed in (0, 1):
        printed = selected(tmp_path, "--collect-only", "-qq", "--seed", str(seed))
        files = [line.split("::")[0] for line in printed.splitlines() if "::" in line]
        assert ["test_a.py"] * 4 + ["test_b.py"] * 4 + ["test_c.py"] * 4 == sorted(files)
        runs = [file for file, before in zip(files, ["", *files], strict=False) if file != before]
        assert 3 == len(runs)
        orders.add(tuple(runs))
    assert 2 == len(orders)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")])
@pytest.mark.parametrize(("seconds", "passed", "late"), [(0, 0, 12), (1000, 12, 0)])
def test_no_test_begins_late(tmp_path, processes, seconds, passed, late) -> None:
    """Tests for which there is no time are not judged, and counted."""
    printed = selected(tmp_path, "--seconds", str(seconds), *processes)
    counted = [
        sum(map(int, re.findall(pattern, printed)))
        for pattern in (r"(\d+) passed", r"left for want of time =+\s+(\d+) tests")
    ]
    assert [passed, late] == counted


@pytest.mark.slow
def test_what_takes_long(tmp_path) -> None:
    """By what pytest told of it, in pytest's names; of a test with parameters the fastest stays."""
    source = """
    import time, pytest

    def test_quick(): ...

    def test_long(): time.sleep(0.9)

    @pytest.mark.parametrize("n", [0.8, 0.85])
    def test_of_long_ones(n): time.sleep(n)

    @pytest.mark.parametrize("n", [0.8, 0, 0.81])
    def test_of_some(n): time.sleep(n)
    """
    (tmp_path / "pytest.ini").write_text("[pytest]\njunit_duration_report = call\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--junit-xml=report.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    tool = Path(__file__).parents[2] / "tools" / "long_tests.py"
    names = tmp_path / "long.txt"
    command = [sys.executable, str(tool), str(tmp_path / "report.xml"), str(names)]
    subprocess.run(command, capture_output=True, check=True)
    assert names.read_text().split() == [
        "tests/test_x.py::test_long",
        "tests/test_x.py::test_of_long_ones[0.85]",
        "tests/test_x.py::test_of_some[0.81]",
        "tests/test_x.py::test_of_some[0.8]",
    ]


def test_what_is_named_is_there(pytestconfig) -> None:
    """Of the tests that are left out as they take long, each file is there."""
    names = sorted(LONG)
    assert names
    for file in {name.partition("::")[0] for name in names}:
        assert (pytestconfig.rootpath / file).is_file(), f"{file} is gone: make long-tests"
