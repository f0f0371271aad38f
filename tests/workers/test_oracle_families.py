"""What transformers computes today is what the golden files of the tiny models hold."""

from __future__ import annotations

import importlib.util
import os

import pytest
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import compute


pytestmark = [
    pytest.mark.oracle,
    # Theirs, not ours: what they import warns of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_golden_files(name):
    """Settings, names, shapes and logits, which two machines' sums may differ in."""
    if importlib.util.find_spec("transformers") is None:
        reason = "transformers is not installed: `make oracles` installs it"
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    golden, now = Truth.read(name), compute(name)
    assert (golden.config, golden.shapes) == (now.config, now.shapes)
    error = ((golden.logits - now.logits) ** 2).mean() / (golden.logits**2).mean()
    assert error <= 1e-12
