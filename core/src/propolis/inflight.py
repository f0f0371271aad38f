"""
What is in flight, said in the names of frames.

A native library that aborts or crashes ends the process at once: no ``except`` sees it, and
the one thing that still gets out is what :mod:`faulthandler` writes, the names of the
functions on the stack and none of their arguments.  So a plugin's function is called by a
small function of ours that is named after the call::

    File "propolis/inflight.py", line 93 in rms_norm#3 out 2x8, x 2x8, weight 8

The number says which implementation it is, and for which dtypes (see
:meth:`propolis.dispatch.quarantine.Quarantine.name`).  There is one such function for each
combination of shapes, made when they are first seen: a call pays for finding out that the
shapes are those of the call before.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import ParamSpec
from typing import TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from propolis.layout import Layout
    from propolis.layout import Shape

    Launch = Callable[[tuple[Any, ...], dict[str, Any]], None]
    """Runs a call, given its arguments and keyword arguments."""

P = ParamSpec("P")
R = TypeVar("R")

_SHAPES_KEPT: Final = 64
_LONGEST: Final = 400  # faulthandler cuts names at 500 characters
_AFTER: Final = "after "
_READ: Final = re.compile(rf"({_AFTER})?\w+#(\d+) ?(.*)")


class Frame(NamedTuple):
    """
    What the name of a frame says.

    Attributes:
        number: of the implementation.
        waiting: the call had returned: the device was waited for.
        shapes: of the call's tensors, by name.
    """

    number: int
    waiting: bool
    shapes: str


def read(name: str) -> Frame | None:
    """What a frame's name says; None of a function that is none of ours."""
    found = _READ.fullmatch(name)
    return Frame(int(found[2]), found[1] is not None, found[3]) if found else None


class Calls:
    """
    The calls of one implementation for one combination of dtypes, by shapes.

    Attributes:
        a: layout of the first tensor of the call before.
        b: of that at ``second``.
        c: of that at ``third``.
        second: place of the second tensor among the arguments; the first where there is none.
        third: of the third; the second's where there is none.  The shapes of further
            tensors follow from these three, or are those of the first such call.
        launch: ran the call before.
    """

    __slots__ = (
        "_fn",
        "_instead",
        "_known",
        "_name",
        "_parameters",
        "a",
        "b",
        "c",
        "launch",
        "second",
        "third",
    )

    def __init__(
        self, fn: Callable[..., None], name: str, parameters: Sequence[str], tensors: int
    ) -> None:
        """
        Name the calls of a function.

        Args:
            fn: the implementation's.
            name: the op's, with the implementation's number.
            parameters: names of ``fn``'s.
            tensors: how many of the first ones are tensors at every call; at least 1.
        """
        self._fn = fn
        self._name = name
        self._parameters = parameters
        self._known: dict[tuple[Shape, ...], Launch] = {}
        self._instead: Launch | None = None
        self.a: Layout | None = None
        self.b: Layout | None = None
        self.c: Layout | None = None
        self.second = min(1, tensors - 1)
        self.third = min(2, tensors - 1)
        self.launch: Launch = _launch(fn, name)

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        """What runs a call of these shapes: ``launch(args, kwargs)``."""
        a, b, c = args[0].layout, args[self.second].layout, args[self.third].layout
        shapes = a.shape, b.shape, c.shape
        launch = self._known.get(shapes)
        if launch is None:
            if len(self._known) == _SHAPES_KEPT:
                self._known.clear()
            name = f"{self._name} {_shapes(self._parameters, args, kwargs)}"[:_LONGEST]
            launch = self._known[shapes] = _launch(self._fn, name)
        self.launch = launch
        self.a, self.b, self.c = a, b, c
        if self._instead is not None:  # set last, so that no thread comes past it
            self.a = None
            return self._instead
        return launch

    def retire(self, instead: Launch) -> None:
        """Let ``instead`` run every later call."""
        self._instead = instead
        self.a = None


def _launch(fn: Callable[..., None], name: str) -> Launch:
    # Both by position: unpacked here once, where passing them on would pack them again.
    def launch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        fn(*args, **kwargs)

    _name(launch, name)
    return launch


def named(call: Callable[P, R], name: str) -> Callable[P, R]:
    """A function that does the same, whose frame has that name."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(*args, **kwargs)

    _name(run, name[:_LONGEST])
    return run


@lru_cache(64)
def after(launch: Launch) -> Callable[..., Any]:
    """Calls something that waits for the device, under the name of what was launched last."""

    def wait(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return call(*args, **kwargs)

    _name(wait, f"{_AFTER}{launch.__code__.co_name}")
    return wait


def _name(function: Any, name: str) -> None:
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)


def _shapes(parameters: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    return ", ".join(
        f"{name} {'x'.join(map(str, value.layout.shape)) or 'scalar'}"
        for name, value in given.items()
        if hasattr(value, "layout")
    )


__all__ = ["Calls", "Frame", "after", "named", "read"]
