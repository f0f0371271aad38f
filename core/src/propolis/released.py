"""
Tensors without memory: weights that an implementation prepared and holds in its own form.

Asking such a tensor for its storage, in whatever way, brings the elements back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from typing import Any
from weakref import WeakKeyDictionary

from propolis.errors import PluginError
from propolis.layout import Layout
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.storage import Storage


class Released(Tensor):
    """
    A tensor whose storage is gone until it is asked for; then it is a plain one again.

    A class of its own, because a ``__getattr__`` costs every look-up of its class: only
    tensors without memory pay.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Reached only by what has no value.
        if name != "storage":
            msg = f"a Tensor has no attribute {name!r}"
            raise AttributeError(msg)
        with _lock:
            if storage_of(self) is None:
                found = _restore[self]()
                whole = found.is_contiguous and found.layout.offset == 0
                if (found.shape, found.dtype) != (self.shape, self.dtype) or not whole:
                    msg = f"restore() of a prepared weight gave {found!r}, not {self!r}, whole"
                    raise PluginError(msg)
                self.storage = found.storage
                self.__class__ = Tensor  # type: ignore[assignment]
                del _restore[self]  # it may hold the prepared form
        return storage_of(self)


def release(tensor: Tensor, restore: Callable[[], Tensor]) -> None:
    """
    Let a tensor go of its memory until somebody asks for the elements.

    Args:
        tensor: any.
        restore: gives them then, as :attr:`propolis.Prepared.restore` does.
    """
    with _lock:
        _restore[tensor] = restore
        tensor.layout = Layout.contiguous(tensor.shape)
        tensor._array = None  # noqa: SLF001  (this is a part of what tensors are)
        tensor.__class__ = Released
        del tensor.storage


def storage_of(tensor: Tensor) -> Storage | None:
    """The storage, or None where the tensor is without: asking brings nothing back."""
    try:
        return _storage(tensor)  # type: ignore[no-any-return]
    except AttributeError:
        return None


_storage: Any = Tensor.__dict__["storage"].__get__
_restore: WeakKeyDictionary[Tensor, Callable[[], Tensor]] = WeakKeyDictionary()
# One at a time, by whichever thread comes first; restoring may run ops on other weights.
_lock = threading.RLock()
