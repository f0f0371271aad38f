"""Programs of tools/, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="session")
def tool() -> Callable[[str], ModuleType]:
    """Load a program of tools/, as Python would where it is run."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load
