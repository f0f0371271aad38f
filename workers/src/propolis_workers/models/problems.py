"""What goes wrong when a model is got or made, and is neither a wrong name nor a wrong file."""

from __future__ import annotations

from typing import ClassVar

from propolis.errors import PropolisError


class PullError(PropolisError):
    """A model could not be pulled: the network, the hub, the disk."""

    exit_code: ClassVar[int] = 1


__all__ = ["PullError"]
