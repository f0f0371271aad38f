"""
Which tests take too long for `make test`, by how long they took.

    make long-tests

runs all that are quick, or were, and writes the names of those that took long to tests/long.txt:
tests/support/selection.py takes them as marked `slow`.  Of a test with parameters the fastest
stays: each is run by `make test`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET


SECONDS = 0.75


def long_tests(report: Path) -> list[str]:
    """Names of tests, as pytest has them, from what it wrote with ``--junit-xml``."""
    taken: dict[str, dict[str, float]] = defaultdict(dict)
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  (pytest's own)
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        taken[name.partition("[")[0]][name] = float(case.attrib["time"])
    long = []
    for alike in taken.values():
        slow = [name for name, seconds in alike.items() if seconds >= SECONDS]
        if len(alike) > 1 and len(slow) == len(alike):
            slow.remove(min(alike, key=lambda name: alike[name]))
        long += slow
    return sorted(long)


def main() -> None:
    """Write the names."""
    report, names = map(Path, sys.argv[1:])
    found = long_tests(report)
    names.write_text("\n".join(found) + "\n")
    print(f"{len(found)} tests take {SECONDS:g} s and more: {names}")


if __name__ == "__main__":
    main()
