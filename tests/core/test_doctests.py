from __future__ import annotations

import doctest

import pytest

import propolis
import propolis.dispatch.capture
import propolis.runtime
import propolis.wording
from propolis import hookspecs


@pytest.mark.parametrize(
    "module",
    [hookspecs, propolis.dispatch.capture, propolis.runtime, propolis.wording],
    ids=lambda m: m.__name__,
)
def test_examples_run(module):
    """The examples in docstrings do what they show."""
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_hook_has_an_example():
    """Authors read the hook's docstring first; it is attached to the public name."""
    hooks = [f for n, f in vars(hookspecs).items() if n.startswith("propolis_")]
    assert len(hooks) == 6
    assert [h.__name__ for h in hooks if ">>>" not in h.__doc__] == []
    assert propolis.hookimpl is hookspecs.hookimpl
