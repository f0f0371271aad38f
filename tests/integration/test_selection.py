"""What `make test` leaves out of matrices is shown by what it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
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


def test_parts_are_all(tmp_path) -> None:
    """Parts of the slow tests are all of them, none twice, each about as many."""
    source = "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('n', range(60))\n"
    (tmp_path / "test_slow.py").write_text(source + "def test_it(n): ...\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    parts = []
    for part in (1, 2):
        options = ["--collect-only", "-q", "--rest", f"--part={part}/2", "-p", "selection"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")},
            capture_output=True,
            text=True,
            check=True,
        )
        parts.append({line for line in done.stdout.splitlines() if "::" in line})
    assert len(parts[0] | parts[1]) == len(parts[0]) + len(parts[1]) == 60
    assert min(map(len, parts)) > 15
