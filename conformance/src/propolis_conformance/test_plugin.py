"""One test for each op and dtype of the plugin that ``--propolis-plugin`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.judge import Result


def test_conforms(judged: Callable[[], Result]) -> None:
    """The implementation does what the op says."""
    result = judged()
    if result.status == "failed":
        pytest.fail(f"{result.check}: {result.message}\n  {result.case}", pytrace=False)
    if result.status == "expected":
        pytest.xfail(result.message)
    if result.status != "passed":
        pytest.skip(f"{result.status}: {result.message}")
