"""Workers that serve: HTTP in one process, the model in another."""

from __future__ import annotations

from typing import Final


TOKENS: Final = ("PROPOLIS_TOKEN", "LLORCH_API_TOKEN")
"""Variables that may hold the token; the second is the one of the ancestor's workers."""

__all__ = ["TOKENS"]
