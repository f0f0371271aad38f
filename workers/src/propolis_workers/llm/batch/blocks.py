"""
The blocks of a paged cache: who has which, and what those that nobody has still hold.

A block that is full of tokens is kept in a tree by the tokens before it, so that a prompt
which begins alike finds its keys and values there (a prefix cache). Such a block may have
several users, and none writes to it. Once it has none it stays until its room is needed: the
block that was not used for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False, slots=True)
class _Node:
    """A full block in the tree; the root has none."""

    block: int
    tokens: tuple[int, ...]
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """
    What a cache holds of the beginning of a sequence.

    Attributes:
        blocks: full blocks of it, in order; whoever asked is a user of them now.
        tokens: how many of its tokens these hold.
        source: a block that holds some of the next tokens too, or None; whoever asked is a user
            of it until they are copied.
        more: how many it holds.
    """

    blocks: list[int]
    tokens: int
    source: int | None = None
    more: int = 0


class Blocks:
    """
    Blocks ``first`` to ``first + count - 1`` of a cache, each of ``size`` tokens.

    Attributes:
        size: tokens of a block.
        count: of blocks.
    """

    def __init__(self, count: int, size: int, first: int = 0) -> None:
        self.size = size
        self.count = count
        self._free = set(range(first, first + count))
        self._users: dict[int, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._root = _Node(-1, (), None)
        # Of the tree, without users; the one not used for longest first. A node's children
        # are before it, because who gives blocks back begins with the last.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def taken(self) -> int:
        """Blocks that somebody uses."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Blocks without users that hold what a prompt may begin with."""
        return len(self._idle)

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
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        else:
            return None
        self._free.discard(block)
        self._users[block] = 1
        return block

    def match(self, tokens: Sequence[int]) -> Match:
        """
        What is there of a sequence's beginning; its last token is never part of it.

        Args:
            tokens: the whole sequence.
        """
        node, size = self._root, self.size
        blocks: list[int] = []
        reach = len(tokens) - 1  # somebody wants the logits after the last
        while (len(blocks) + 1) * size <= reach:
            start = len(blocks) * size
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            self._use(child.block)
            blocks.append(child.block)
            node = child
        start = len(blocks) * size
        wanted = tuple(tokens[start : min(start + size, reach)])
        best, most = None, 0
        for child in node.children.values():
            shared = _shared(child.tokens, wanted)
            if shared > most:
                best, most = child.block, shared
        if best is not None:
            self._use(best)
        return Match(blocks, start, best, most)

    def keep(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """
        Let others find blocks that are full now.

        Args:
            blocks: of a sequence, from its first; all of them full.
            tokens: that they hold.
        """
        node = self._root
        for place, block in enumerate(blocks):
            part = tuple(tokens[place * self.size : (place + 1) * self.size])
            child = node.children.get(part)
            if child is None:
                child = node.children[part] = self._nodes[block] = _Node(block, part, node)
            if child.block != block:
                return  # somebody else's block holds the same: one is enough
            node = child

    def give_back(self, blocks: Sequence[int]) -> None:
        """
        Use blocks no more; what the tree has of them stays for a while.

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
            if block in self._nodes:
                self._idle[block] = None
            else:
                self._free.add(block)

    def forget(self) -> None:
        """Keep nothing of what has no user."""
        while self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
            self._free.add(block)

    def _use(self, block: int) -> None:
        self._idle.pop(block, None)
        self._users[block] = self._users.get(block, 0) + 1

    def _forget(self, block: int) -> None:
        node = self._nodes.pop(block)
        if node.parent is not None:
            del node.parent.children[node.tokens]

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


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements two sequences begin with alike."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


__all__ = ["Blocks", "Match"]
