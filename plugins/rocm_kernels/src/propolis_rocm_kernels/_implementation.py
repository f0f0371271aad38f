"""How this plugin offers an op to core."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from propolis import OpImpl
from propolis import Priority


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    from propolis.dtypes import DType


def implementation(
    name: str,
    fn: Callable[..., None],
    kinds: Collection[DType] | Mapping[str, Collection[DType]],
    *,
    in_place: bool = True,
    workspace: int | Callable[..., int] | None = None,
    **rest: Any,
) -> OpImpl:
    """An op as this plugin does it: at any strides, and within a captured step; ``rest`` too."""
    fn.__name__ = fn.__qualname__ = name
    return OpImpl(
        op=name,
        fn=fn,
        device="rocm",
        dtypes=kinds,
        capture_safe=True,
        in_place=in_place,
        workspace=workspace,
        **{"priority": Priority.GENERIC, **rest},
    )
