"""
The suite as a pytest plugin: options, and one test an op and dtype.

``pytest -p propolis_conformance.pytest_plugin`` loads it.  It is no entry point, which would
load it, and all of core, in every pytest run of every environment that has core.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from propolis.errors import PropolisError
from propolis_conformance import expect
from propolis_conformance.pool import Child
from propolis_conformance.pool import Request
from propolis_conformance.test_plugin import test_conforms


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis_conformance.judge import Result

_JUDGE = pytest.StashKey["Judge"]()


class Judge:
    """A child for the whole session, replaced when it dies."""

    def __init__(self, request: Request, expected: dict[str, str]) -> None:
        self.request = request
        self.expected = expected
        self.child = Child(request)

    def __call__(self, unit: str) -> Result:
        """The result of one unit."""
        if not self.child.usable:
            self.child = Child(self.request)
        result = self.child.judge(unit)
        op = unit.partition("[")[0]
        known = {name: why for name, why in self.expected.items() if name in (unit, op)}
        return expect.apply([result], known)[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the command line of ``propolis conformance`` has, too."""
    group = parser.getgroup("propolis")
    group.addoption("--propolis-plugin", metavar="NAME", help="the plugin to judge")
    group.addoption("--propolis-device", metavar="ID", help="on which device")
    group.addoption("--propolis-seed", type=int, default=0, metavar="N")
    group.addoption("--propolis-full", action="store_true", help="random cases, too")
    group.addoption("--propolis-expect", type=Path, metavar="FILE", help="known failures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a unit; other tests, whatever their arguments are called, are not ours."""
    if metafunc.function is test_conforms:
        judge = _judge(metafunc.config)
        units = [name for name, _ in judge.child.units]
        metafunc.parametrize("judged", [partial(judge, unit) for unit in units], ids=units)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[Any]:
    """End the child."""
    found = session.config.stash.get(_JUDGE, None)
    if found is not None:
        found.child.close()
    return (yield)


def _judge(config: pytest.Config) -> Judge:
    if _JUDGE not in config.stash:
        plugin = config.getoption("--propolis-plugin")
        if not plugin:
            text = "--propolis-plugin NAME says which plugin to judge"
            raise pytest.Collector.CollectError(text)
        file = config.getoption("--propolis-expect")
        request = Request(
            plugin,
            config.getoption("--propolis-device"),
            config.getoption("--propolis-seed"),
            quick=not config.getoption("--propolis-full"),
        )
        try:
            config.stash[_JUDGE] = Judge(request, expect.load(file) if file else {})
        except PropolisError as exc:  # what an author reads is the sentence, not our frames
            raise pytest.Collector.CollectError(str(exc)) from None
    return config.stash[_JUDGE]
