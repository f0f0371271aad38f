"""One test for each op and dtype of the plugin that ``--propolis-plugin`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from propolis.conformance.pytest_plugin import Judge


def test_conforms(unit: str, judge: Judge) -> None:
    """The implementation does what the op says."""
    result = judge(unit)
    if result.status == "failed":
        pytest.fail(f"{result.check}: {result.message}\n  {result.case}", pytrace=False)
    if result.status == "expected":
        pytest.xfail(result.message)
    if result.status != "passed":
        pytest.skip(f"{result.status}: {result.message}")
