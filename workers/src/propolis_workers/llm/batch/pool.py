"""Blocks of one memory: who uses which, and which hold what may be found again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence


class Pool:
    """
    Blocks ``first`` to ``first + count - 1``.

    Each is free, or has users, or is idle: it has none, and holds what may be found again until
    its room is needed. The one that was not used for longest goes first, and before it those that
    were passed: nobody is known to look for them.

    Attributes:
        count: how many there are.
    """

    def __init__(self, count: int, first: int, lost: Callable[[int], None]) -> None:
        """
        Begin with all of them free.

        Args:
            count: how many.
            first: the number of the first.
            lost: told of each block that can be found no more because its room was needed.
        """
        self.count = count
        self._lost = lost
        self._free = set(range(first, first + count))
        self._users: dict[int, int] = {}
        self._findable: set[int] = set()
        # Of a sequence its end goes before its beginning, because who gives blocks back begins
        # with the last.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._passed: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free) + self.kept

    @property
    def taken(self) -> int:
        """Blocks that somebody uses."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Blocks without users that hold what a prompt may begin with."""
        return len(self._idle) + len(self._passed)

    def take(self, after: int | None = None) -> int | None:
        """
        A block for one user.

        Args:
            after: the user's last block. The one behind it is preferred: neighbours can be read
                as one piece of memory.

        Returns:
            The block, or None where all have users.
        """
        if after is not None and after + 1 in self._free:
            block = after + 1
        elif self._free:
            block = self._roomiest()
        elif self.kept:
            block = self._oldest()
        else:
            return None
        self._free.discard(block)
        self._users[block] = 1
        return block

    def use(self, block: int) -> None:
        """Be one more user of a block that was found."""
        self._idle.pop(block, None)
        self._passed.pop(block, None)
        self._users[block] = self._users.get(block, 0) + 1

    def give_back(self, blocks: Sequence[int], *, passed: bool = False) -> None:
        """
        Use blocks no more; what can be found stays for a while.

        Args:
            blocks: in the order of what they hold.
            passed: whether their room is needed before that of all others.

        Raises:
            UsageError: one of them has no user.
        """
        for block in reversed(blocks):
            users = self._users.get(block, 0)
            if users == 0:
                msg = f"block {block} has no user"
                raise UsageError(msg)
            if users > 1:
                self._users[block] = users - 1
                continue
            del self._users[block]
            if block in self._findable:
                (self._passed if passed else self._idle)[block] = None
            else:
                self._free.add(block)

    def hold(self, block: int) -> None:
        """Let a block that has a user be found from now on."""
        self._findable.add(block)

    def release(self, block: int) -> None:
        """Let a block be found no more."""
        self._findable.discard(block)
        if block in self._idle or block in self._passed:
            self._idle.pop(block, None)
            self._passed.pop(block, None)
            self._free.add(block)

    def forget(self) -> None:
        """Keep nothing of what has no user."""
        while self.kept:
            self._free.add(self._oldest())

    def _oldest(self) -> int:
        block, _ = (self._passed or self._idle).popitem(last=False)
        self._findable.discard(block)
        self._lost(block)
        return block

    def _roomiest(self) -> int:
        """
        A free block behind which are as many free ones as can be.

        That is the middle of the longest run: before it somebody else may grow.
        """
        best, longest, start, last = -1, 0, -1, -2
        for block in sorted(self._free):
            if block != last + 1:
                start = block
            last = block
            if block - start + 1 > longest:
                best, longest = start, block - start + 1
        return best + longest // 2 if self._users else best


__all__ = ["Pool"]
